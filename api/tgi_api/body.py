"""Reading JSON bodies."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec
from litestar.exceptions import InternalServerException
from litestar.exceptions.http_exceptions import RequestEntityTooLarge

from tgi_api.errors import (
    AnyRequest,
    BodyTypeError,
    ClientGoneError,
    MalformedBodyError,
    MediaTypeError,
    PayloadError,
)
from tgi_api.state import server_of

T = TypeVar("T")

_JSON = re.compile(r"application/(?:[\w.!#$&^-]+\+)?json\s*(?:;|$)", re.IGNORECASE)


async def read_body(request: AnyRequest, kind: type[T]) -> T:
    """The body as a ``kind``. Raises what ``read_bytes`` and ``decode_body`` raise."""
    return decode_body(await read_bytes(request), kind)


async def read_bytes(request: AnyRequest) -> bytes:
    """The body, which is declared to be JSON.

    Raises:
        MediaTypeError: the content type is not JSON.
        PayloadError: the body is too large.
        ClientGoneError: the connection closed before the body was complete.
    """
    content_type = request.headers.get("content-type", "")
    if not _JSON.match(content_type):
        raise MediaTypeError(f"Expected a request with `Content-Type: application/json`. Given: `{content_type}`")
    try:
        return await request.body()
    except RequestEntityTooLarge:
        limit = server_of(request).config.api.payload_limit
        raise PayloadError(f"The body is larger than --payload-limit allows, which is {limit} bytes") from None
    except InternalServerException:
        raise ClientGoneError("The client has gone before its request was complete") from None


def decode_body(body: bytes, kind: type[T]) -> T:
    """The body as a ``kind``.

    Raises:
        MalformedBodyError: the body is not JSON, or nested too deeply.
        BodyTypeError: a field is missing or has the wrong type; the message names its path.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise BodyTypeError(str(error)) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise MalformedBodyError(str(error) if body else "it is empty") from None
    except RecursionError:
        raise MalformedBodyError("it is nested too deeply") from None
