"""The API key."""

from __future__ import annotations

import hmac
from typing import Any

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.types import Guard

from tgi_api.errors import UnauthorizedError
from tgi_api.openapi import OPERATION, Operation

_ANTHROPIC_PATHS = "/v1/messages"


def require_key(key: str) -> Guard:
    """A guard that lets only requests with ``Authorization: Bearer <key>`` to protected routes.

    Anthropic's routes take the key in ``x-api-key`` too, where Anthropic's clients send it. Other requests raise
    UnauthorizedError before their body is read. The key is compared exactly and in constant time.
    """
    expected = key.encode()

    def guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        operation: Operation | None = handler.opt.get(OPERATION)
        if operation is None or not operation.is_protected:
            return
        scheme, _, given = connection.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and matches(given):
            return
        path: str = connection.scope["path"]
        if path.startswith(_ANTHROPIC_PATHS) and matches(connection.headers.get("x-api-key", "")):
            return
        raise UnauthorizedError("The API key is missing or wrong; send `Authorization: Bearer <key>`")

    def matches(given: str) -> bool:
        # Headers are latin-1 on the wire; encoding them back compares the bytes that were sent.
        return hmac.compare_digest(given.strip().encode("latin-1"), expected)

    return guard
