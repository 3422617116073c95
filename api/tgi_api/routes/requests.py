"""Cancelling running requests."""

from __future__ import annotations

from litestar import post
from litestar.response.base import ASGIResponse

from tgi_api.errors import AnyRequest, RequestNotFoundError
from tgi_api.openapi import OPERATION, Operation
from tgi_api.reply import json_reply
from tgi_api.schemas.requests import CancelledRequest
from tgi_api.state import server_of


@post(
    "/v1/requests/{request_id:str}/cancel",
    status_code=200,
    sync_to_thread=False,
    opt={OPERATION: Operation("End a running request", "Server", reply=CancelledRequest, errors=(404,))},
)
def cancel_request(request: AnyRequest) -> ASGIResponse:
    """End the request with this ``x-request-id``, or whose reply has this ``id``."""
    request_id = str(request.path_params["request_id"])
    running = server_of(request).running
    # An id of a reply is that of its request behind a prefix such as "cmpl-".
    for known in (request_id, request_id.partition("-")[2], request_id.partition("_")[2]):
        count = running.cancel(known)
        if count is not None:
            return json_reply(CancelledRequest(request_id, count))
    raise RequestNotFoundError(f"No running request has the id {request_id[:200]!r}")


HANDLERS = (cancel_request,)
