"""What the two OpenAI routes have in common."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from tgi_api.schemas.generate import UINT64_MAX, bounds
from tgi_core import requests

FinishReason = Annotated[str, Meta(extra_json_schema={"enum": ["stop", "length"]})]


class StreamOptions(msgspec.Struct, frozen=True):
    """Options of a stream."""

    include_usage: Annotated[bool | None, Meta(description="Send one more chunk with the token counts")] = None


class OpenAIRequest(requests.OpenAIParameters, frozen=True, kw_only=True):
    """What both routes take. An explicit null means "not given"."""

    model: Annotated[str | None, bounds("Any name is accepted and echoed", examples=["tgi"])] = None
    max_tokens: Annotated[
        int | None, bounds("Most tokens to generate; the rest of the context when left out", minimum=1)
    ] = None
    max_completion_tokens: Annotated[int | None, bounds("Newer name of max_tokens; it wins", minimum=1)] = None
    temperature: Annotated[float | None, bounds("Divides the logits; 0 is greedy", minimum=0)] = None
    top_p: Annotated[
        float | None,
        bounds("Keep the most likely tokens with this probability mass; 1 is off", exclusiveMinimum=0, maximum=1),
    ] = None
    top_k: Annotated[int | None, bounds("Keep the k most likely tokens; 0 and -1 are off", minimum=-1)] = None
    min_p: Annotated[
        float | None,
        bounds("Drop tokens less likely than this share of the best one's; 0 is off", minimum=0, maximum=1),
    ] = None
    repetition_penalty: Annotated[
        float | None, bounds("Makes tokens of prompt and output less likely; 1 is off", exclusiveMinimum=0)
    ] = None
    frequency_penalty: Annotated[
        float | None, bounds("Penalty by how often a token was generated; 0 is off", minimum=-2, maximum=2)
    ] = None
    presence_penalty: Annotated[
        float | None, bounds("Penalty for tokens that were generated; 0 is off", minimum=-2, maximum=2)
    ] = None
    logit_bias: Annotated[
        dict[str, float] | list[float] | None, Meta(description="Added to the logits, by token id")
    ] = None
    seed: Annotated[int | None, bounds("Seed of the sampling", minimum=0, maximum=UINT64_MAX)] = None
    stop: Annotated[
        list[str] | str | None, Meta(description="Texts that end the generation; they are not returned")
    ] = None
    n: Annotated[int | None, bounds("How many choices", minimum=1)] = None
    best_of: Annotated[int | None, bounds("Generate this many and return the best", minimum=1)] = None
    stream: Annotated[bool | None, Meta(description="Answer with server-sent events")] = None
    stream_options: StreamOptions | None = None
    ignore_eos: Annotated[bool | None, Meta(description="The end-of-sequence token does not end the text")] = None

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with a chunk of token counts."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class Usage(msgspec.Struct, frozen=True):
    """Token counts; EOS is one of the completion's tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
