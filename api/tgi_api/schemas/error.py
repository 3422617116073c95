"""Error bodies."""

from __future__ import annotations

import msgspec


class ErrorResponse(msgspec.Struct, frozen=True):
    """Every error on every route, and an error event in a stream of the generate routes."""

    error: str
    error_type: str


class OpenAIErrorDetail(msgspec.Struct, frozen=True):
    """What failed, in a stream of the OpenAI routes."""

    message: str
    http_status_code: int


class OpenAIStreamError(msgspec.Struct, frozen=True):
    """An error event in a stream of the OpenAI routes."""

    error: OpenAIErrorDetail
