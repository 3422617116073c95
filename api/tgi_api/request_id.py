"""The id of an HTTP request: the client's own or a random one, told in every reply's ``x-request-id``."""

from __future__ import annotations

import re
import uuid
from typing import Any

from litestar.types import Message, Scope

_VALID = re.compile(r"[\w.:@/+=~-]{1,128}", re.ASCII)
_KEY = "request_id"


def is_request_id(text: str) -> bool:
    """Whether a client may call its request so."""
    return _VALID.fullmatch(text) is not None


def request_id_of(scope: Scope) -> str:
    """The id of the request; a header that is no id counts as none."""
    state: dict[str, Any] = scope["state"]
    known: str | None = state.get(_KEY)
    if known is None:
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"").decode("latin-1")
        state[_KEY] = known = given if is_request_id(given) else uuid.uuid4().hex
    return known


def set_request_id(scope: Scope, request_id: str) -> None:
    """Take the id that the request's body gives; before the reply begins."""
    scope["state"][_KEY] = request_id


async def send_request_id(message: Message, scope: Scope) -> None:
    """litestar's hook before a message is sent: adds the header."""
    if message["type"] == "http.response.start" and scope["type"] == "http":
        message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id_of(scope).encode())]
