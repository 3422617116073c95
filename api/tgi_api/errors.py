"""What goes wrong before and around a generation."""

from __future__ import annotations

import re

from litestar import Request
from litestar.datastructures import State

from tgi_core.errors import RequestError

AnyRequest = Request[None, None, State]


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

    @property
    def param(self) -> str | None:
        """The field by its path, without the body's own ``$.``; or the field that is missing."""
        found = re.search(r" - at `\$\.?([^`]+)`$|required field `([^`]+)`$", self.detail)
        return (found[1] or found[2]) if found else None


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
    code = "invalid_api_key"
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


class ModelNotFoundError(RequestError):
    """No such model: 404."""

    status = 404
    error_type = "model_not_found"
    code = "model_not_found"
    metric = "validation"


class RequestNotFoundError(RequestError):
    """No running request has the id: 404."""

    status = 404
    error_type = "request_not_found"
    code = "request_not_found"
    metric = "validation"


class ResponseNotFoundError(RequestError):
    """A stored response is asked for, and none is stored: 404."""

    status = 404
    error_type = "response_not_found"
    code = "response_not_found"
    metric = "validation"


class CancelledRequestError(RequestError):
    """The request was cancelled over the cancel route: 499 by custom."""

    status = 499
    error_type = "cancelled"
    code = "cancelled"
    metric = "cancelled"


class InternalError(RequestError):
    """A bug: 500."""


class FrameworkError(RequestError):
    """An error of the HTTP framework."""

    error_type = "validation"
    metric = "validation"

    def __init__(self, detail: str, status: int) -> None:
        super().__init__(detail)
        self.status = status


class NotFoundError(FrameworkError):
    """No such route: 404."""

    error_type = "not_found"
    code = "not_found"


class MethodError(FrameworkError):
    """A method that the route does not take: 405."""

    error_type = "method_not_allowed"
    code = "method_not_allowed"
