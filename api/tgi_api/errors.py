"""What goes wrong before and around a generation, and how every error becomes ``{"error", "error_type"}``."""

from __future__ import annotations

import logging

from litestar import Request
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.response import Response

from tgi_api.schemas.error import ErrorResponse
from tgi_core.errors import RequestError

logger = logging.getLogger(__name__)

AnyRequest = Request[None, None, State]

_RETRY_AFTER_S = {429: 1, 503: 5}
"""A full server has a place again within a second or so, a restarted engine loads for several."""

_FRAMEWORK_ERRORS = {
    404: ("not_found", "There is no such route"),
    405: ("method_not_allowed", "This route does not take the method"),
}


class MalformedBodyError(RequestError):
    """The body is not JSON: 400."""

    status = 400
    error_type = "validation"
    metric = "validation"
    prefix = "Failed to parse the request body as JSON: "


class BodyTypeError(RequestError):
    """The body is JSON of the wrong shape: 422."""

    status = 422
    error_type = "validation"
    metric = "validation"
    prefix = "Failed to deserialize the JSON body: "


class MediaTypeError(RequestError):
    """The body is not declared as JSON: 415."""

    status = 415
    error_type = "validation"
    metric = "validation"


class PayloadError(RequestError):
    """The body is larger than the limit: 413."""

    status = 413
    error_type = "validation"
    metric = "validation"


class UnauthorizedError(RequestError):
    """The API key is missing or wrong: 401."""

    status = 401
    error_type = "authentication"
    metric = "validation"


class ClientGoneError(RequestError):
    """The client has closed the connection, so nobody reads the reply: 499 by custom."""

    status = 499
    error_type = "dropped"
    metric = "dropped"


class SuffixError(RequestError):
    """A completion with a suffix: 422."""

    status = 422
    error_type = "suffix not supported"
    metric = "validation"


class BatchSizeError(RequestError):
    """A completion of too many prompts: 422."""

    status = 422
    error_type = "batch size exceeded"
    metric = "validation"


def handle_request_error(_: AnyRequest, error: RequestError) -> Response[ErrorResponse]:
    """Exception handler of our own errors."""
    headers = {}
    if error.status in _RETRY_AFTER_S:
        headers["retry-after"] = str(_RETRY_AFTER_S[error.status])
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return Response(ErrorResponse(str(error), error.error_type), status_code=error.status, headers=headers)


def handle_http_exception(request: AnyRequest, error: HTTPException) -> Response[ErrorResponse]:
    """Exception handler of litestar's errors: no such route, wrong method."""
    error_type, text = _FRAMEWORK_ERRORS.get(error.status_code, ("http", error.detail))
    body = ErrorResponse(f"{text}: {request.method} {request.scope['path']}", error_type)
    return Response(body, status_code=error.status_code, headers=dict(error.headers or {}))


def handle_unexpected(request: AnyRequest, error: Exception) -> Response[ErrorResponse]:
    """Exception handler of bugs: the log gets the traceback, the client does not."""
    logger.error("%s %s failed", request.method, request.scope["path"], exc_info=error)
    return Response(ErrorResponse("Internal server error", "internal"), status_code=500)
