"""Plain JSON replies, and the head that OpenAI's replies begin with."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec
from litestar.response.base import ASGIResponse

from tgi_api.output import Output
from tgi_api.schemas.openai import PromptTokensDetails, Usage
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


def reply_model(server: AppState, model: str | None) -> str:
    """The name of the model in a reply: the request's, except for none and for TGI's placeholder."""
    return server.model_id if model in (None, "", "tgi") else model


def make_head(server: AppState, request_id: str, *, kind: str, id_prefix: str, model: str | None) -> ReplyHead:
    """The head of a new reply.

    Args:
        server: names the model and the version.
        request_id: the request's.
        kind: value of ``object``.
        id_prefix: what stands in front of the request's id.
        model: the request's.
    """
    return ReplyHead(
        object=kind,
        id=f"{id_prefix}-{request_id}",
        created=int(time.time()),
        model=reply_model(server, model),
        system_fingerprint=server.fingerprint,
    )


def count_usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> Usage:
    """Usage from its parts; ``cached_tokens`` of the prompts' tokens were found in the prefix cache."""
    return Usage(
        prompt_tokens, completion_tokens, prompt_tokens + completion_tokens, PromptTokensDetails(cached_tokens)
    )


def reply_usage(groups: Sequence[Sequence[Output]]) -> Usage:
    """Usage of a reply with the outputs of each prompt; a prompt counts once, however many outputs it has."""
    generations = [output.generation for group in groups for output in group]
    return count_usage(
        sum(len(group[0].prompt.token_ids) for group in groups),
        sum(generation.num_tokens for generation in generations),
        sum(group[0].generation.cached_tokens for group in groups),
    )
