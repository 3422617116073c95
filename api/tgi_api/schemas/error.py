"""Error bodies: one for each API whose routes the server has."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType


class ErrorResponse(msgspec.Struct, frozen=True):
    """Every error on TGI's routes, and an error event in their streams."""

    error: str
    error_type: str


class OpenAIErrorDetail(msgspec.Struct, frozen=True):
    """What failed: ``param`` names the field, ``code`` the problem; TGI's events also have the status."""

    message: str
    type: str
    param: str | None
    code: str | None
    http_status_code: int | UnsetType = UNSET


class OpenAIError(msgspec.Struct, frozen=True):
    """Every error on OpenAI's routes, and an error event in their streams; ``error_type`` is TGI's."""

    error: OpenAIErrorDetail
    error_type: str


class AnthropicErrorDetail(msgspec.Struct, frozen=True):
    """What failed."""

    type: str
    message: str


class AnthropicError(msgspec.Struct, frozen=True):
    """Every error on /v1/messages, and an error event in its stream; ``error_type`` is TGI's."""

    type: Literal["error"]
    error: AnthropicErrorDetail
    error_type: str
    request_id: str
