"""Bodies and replies of /v1/completions."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tgi_api.schemas.openai import FinishReason, OpenAIRequest, Usage
from tgi_api.schemas.sampling import bounds


class CompletionRequest(OpenAIRequest, frozen=True, kw_only=True):
    """One or several prompts to continue."""

    prompt: Annotated[
        str | list[str | int | list[int]],
        Meta(description="A text, a list of texts, a list of token ids, or a list of lists of token ids"),
    ]
    logprobs: Annotated[
        int | None,
        bounds(
            "Return the log-probability of each token, and of this many of the most likely ones", minimum=0, maximum=20
        ),
    ] = None
    echo: Annotated[
        bool | None, Meta(description="Put the prompt in front of the text, with logprobs its tokens' too")
    ] = None
    suffix: Annotated[str | None, Meta(description="Refused: text after the completion")] = None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Columns with one entry for each token; offsets count characters of the choice's text.

    An echoed prompt's tokens have no top_logprobs, and its first one has no log-probability.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float | None] | None] | None
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True):
    """One continuation of one prompt: those of the first prompt come first."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason


class Completion(msgspec.Struct, frozen=True):
    """The result; usage is over all prompts."""

    object: Literal["text_completion"]
    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage


class CompletionChunkChoice(msgspec.Struct, frozen=True):
    """A piece of one continuation of one prompt."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None


class CompletionChunk(msgspec.Struct, frozen=True):
    """One event of a streamed completion. Usage comes, when asked for, in a last chunk without choices."""

    object: Literal["text_completion"]
    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChunkChoice]
    usage: Usage | None
