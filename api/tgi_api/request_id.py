"""The id of an HTTP request: the client's own or a random one, told in every reply's ``x-request-id``."""

from __future__ import annotations

import re
import uuid
from typing import Any

from litestar.types import Message, Scope

from tgi_core.errors import ValidationError

REQUEST_ID = r"^[A-Za-z0-9_.:@+=~-]{1,128}$"
"""What a client may call its request; a path may end with it."""

_KEY = "request_id"


def is_request_id(text: str) -> bool:
    """Whether a client may call its request so."""
    return re.fullmatch(REQUEST_ID, text) is not None


def request_id_of(scope: Scope) -> str:
    """The id of the request; a header that is no id counts as none."""
    state: dict[str, Any] = scope["state"]
    known: str | None = state.get(_KEY)
    if known is None:
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"").decode("latin-1")
        state[_KEY] = known = given if is_request_id(given) else uuid.uuid4().hex
    return known


def set_request_id(scope: Scope, request_id: str) -> None:
    """Take the id that the request's body gives; before the reply begins.

    Raises:
        ValidationError: it is no id.
    """
    if not is_request_id(request_id):
        raise ValidationError(
            f"`request_id` must have 1 to 128 letters, digits or any of _.:@+=~-. Given: {request_id[:80]!r}"
        )
    scope["state"][_KEY] = request_id


async def send_request_id(message: Message, scope: Scope) -> None:
    """litestar's hook before a message is sent: adds the header."""
    if message["type"] == "http.response.start":
        message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id_of(scope).encode())]
