"""The API key."""

from __future__ import annotations

import hmac
from typing import Any

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.types import Guard

from tgi_api.errors import UnauthorizedError
from tgi_api.openapi import OPERATION, Operation


def require_key(key: str) -> Guard:
    """A guard that lets only requests with ``Authorization: Bearer <key>`` to protected routes.

    Others raise UnauthorizedError before their body is read.
    """
    expected = key.encode()

    def guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        operation: Operation | None = handler.opt.get(OPERATION)
        if operation is None or not operation.is_protected:
            return
        scheme, _, given = connection.headers.get("authorization", "").partition(" ")
        # Headers are latin-1 on the wire; encoding them back compares the bytes that were sent.
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode("latin-1"), expected):
            raise UnauthorizedError("The API key is missing or wrong; send `Authorization: Bearer <key>`")

    return guard
