"""``/v1/models/{model}``, and what OpenAI's API has that this server's models do not."""

from __future__ import annotations

from litestar import get, post
from litestar.response.base import ASGIResponse

from tgi_api.errors import AnyRequest, ModelNotFoundError
from tgi_api.openapi import OPERATION, Operation
from tgi_api.reply import json_reply
from tgi_api.schemas.info import ModelInfo
from tgi_api.state import server_of
from tgi_core.errors import ValidationError


@get(
    "/v1/models/{model:path}",
    sync_to_thread=False,
    opt={OPERATION: Operation("A served model", "OpenAI", reply=ModelInfo, errors=(404,), is_protected=False)},
)
def model_info(request: AnyRequest) -> ASGIResponse:
    """The served model by one of its names, which may have slashes."""
    server = server_of(request)
    name = str(request.path_params["model"]).removeprefix("/")
    if name not in server.model_names:
        known = ", ".join(f"`{known}`" for known in server.model_names)
        raise ModelNotFoundError(f"`model` must be a served one: {known}. Given: {name[:200]!r}")
    return json_reply(ModelInfo(name, "model", 0, server.model_id))


@post(
    "/v1/embeddings",
    opt={OPERATION: Operation("Refused: the model generates text", "OpenAI", errors=(422,))},
    status_code=200,
    sync_to_thread=False,
)
def embeddings() -> ASGIResponse:
    """A readable refusal."""
    raise ValidationError("this server's model generates text and has no embeddings: ask a server of embedding models")


HANDLERS = (model_info, embeddings)
