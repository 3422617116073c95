"""How every error becomes a reply in the form of the API that its route belongs to."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
from litestar.exceptions import HTTPException
from litestar.response import Response

from tgi_api.errors import (
    AnyRequest,
    FrameworkError,
    InternalError,
    MethodError,
    NotFoundError,
    UnauthorizedError,
)
from tgi_api.request_id import request_id_of
from tgi_api.schemas.error import (
    AnthropicError,
    AnthropicErrorDetail,
    ErrorResponse,
    OpenAIError,
    OpenAIErrorDetail,
)
from tgi_api.state import server_of
from tgi_core.errors import RequestError

logger = logging.getLogger(__name__)

_RETRY_AFTER_S = {429: 1, 503: 5}
"""A full server has a place again within a second or so, a restarted engine loads for several."""

_FRAMEWORK_ERRORS = {
    404: (NotFoundError, "There is no such route"),
    405: (MethodError, "This route does not take the method"),
}

_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class ErrorForm(msgspec.Struct, frozen=True):
    """The form of errors on the routes of one API.

    Attributes:
        schema: type of the body.
        make: the body of an error to the request with an id.
    """

    schema: type[msgspec.Struct]
    make: Callable[[RequestError, str], msgspec.Struct]


def tgi_error(error: RequestError, _: str = "") -> ErrorResponse:
    """TGI's body."""
    return ErrorResponse(str(error), error.error_type)


def openai_error(error: RequestError, _: str = "") -> OpenAIError:
    """OpenAI's body."""
    return OpenAIError(OpenAIErrorDetail(str(error), _openai_type(error), error.param, error.code), error.error_type)


def openai_error_event(error: RequestError) -> OpenAIError:
    """The error event of a chat's or completion's stream; TGI's clients read the status in it."""
    detail = OpenAIErrorDetail(str(error), _openai_type(error), error.param, error.code, error.status)
    return OpenAIError(detail, error.error_type)


def anthropic_error(error: RequestError, request_id: str) -> AnthropicError:
    """Anthropic's body."""
    kind = _ANTHROPIC_TYPES.get(error.status, "invalid_request_error" if _is_clients_fault(error) else "api_error")
    return AnthropicError("error", AnthropicErrorDetail(kind, str(error)), error.error_type, request_id)


def error_form(path: str) -> ErrorForm:
    """The form of errors on the route at ``path``."""
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return _ANTHROPIC
    return _OPENAI if path.startswith("/v1/") else _TGI


def handle_request_error(request: AnyRequest, error: RequestError) -> Response[msgspec.Struct]:
    """Exception handler of our own errors."""
    headers = {}
    if error.status in _RETRY_AFTER_S:
        headers["retry-after"] = str(_RETRY_AFTER_S[error.status])
    if isinstance(error, UnauthorizedError):
        headers["www-authenticate"] = "Bearer"
    return _reply(request, error, headers)


def handle_http_exception(request: AnyRequest, error: HTTPException) -> Response[msgspec.Struct]:
    """Exception handler of litestar's errors: no such route, wrong method."""
    kind, text = _FRAMEWORK_ERRORS.get(error.status_code, (FrameworkError, error.detail))
    ours = kind(f"{text}: {request.method} {request.scope['path']}", error.status_code)
    return _reply(request, ours, dict(error.headers or {}))


def handle_unexpected(request: AnyRequest, error: Exception) -> Response[msgspec.Struct]:
    """Exception handler of bugs: the log gets the traceback, the client does not."""
    logger.error("%s %s failed", request.method, request.scope["path"], exc_info=error)
    return _reply(request, InternalError("Internal server error"), {})


def _reply(request: AnyRequest, error: RequestError, headers: dict[str, str]) -> Response[msgspec.Struct]:
    path, api = request.scope["path"], server_of(request).config.api
    form = _TGI if path in (api.predict_route, api.health_route) else error_form(path)
    body = form.make(error, request_id_of(request.scope))
    return Response(body, status_code=error.status, headers=headers, media_type="application/json")


def _is_clients_fault(error: RequestError) -> bool:
    # 424 is TGI's status for an engine that failed.
    return error.status < 500 and error.status != 424


def _openai_type(error: RequestError) -> str:
    if error.status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if _is_clients_fault(error) else "server_error"


_TGI = ErrorForm(ErrorResponse, tgi_error)
_OPENAI = ErrorForm(OpenAIError, openai_error)
_ANTHROPIC = ErrorForm(AnthropicError, anthropic_error)
