"""Plain JSON replies, and the head that OpenAI's replies begin with."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
from litestar.response.base import ASGIResponse

from tgi_api.output import Output, Prompt
from tgi_api.schemas.openai import Usage
from tgi_api.state import AppState


def json_reply(content: Any, headers: dict[str, str] | None = None, status_code: int = 200) -> ASGIResponse:
    """A reply with ``content``, a struct or a list of structs."""
    return ASGIResponse(
        body=msgspec.json.encode(content), headers=headers, media_type="application/json", status_code=status_code
    )


class ReplyHead(msgspec.Struct, frozen=True):
    """The keys that a whole reply, and each of its chunks, begins with."""

    object: str
    id: str
    created: int
    model: str
    system_fingerprint: str


def make_head(server: AppState, *, kind: str, id_prefix: str, model: str | None) -> ReplyHead:
    """The head of a new reply.

    Args:
        server: names the model and the version.
        kind: value of ``object``.
        id_prefix: what the random id begins with.
        model: the request's; it is echoed, except for none and for TGI's placeholder.
    """
    return ReplyHead(
        object=kind,
        id=f"{id_prefix}-{uuid.uuid4().hex}",
        created=int(time.time()),
        model=server.model_id if model in (None, "", "tgi") else model,
        system_fingerprint=server.fingerprint,
    )


def count_usage(prompt_tokens: int, completion_tokens: int) -> Usage:
    """Usage from its two parts."""
    return Usage(prompt_tokens, completion_tokens, prompt_tokens + completion_tokens)


def reply_usage(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> Usage:
    """Usage of a plain reply; a prompt counts once, however many outputs it has."""
    return count_usage(
        sum(len(prompt.token_ids) for prompt in prompts), sum(output.generation.num_tokens for output in outputs)
    )
