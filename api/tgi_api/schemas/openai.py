"""What the two OpenAI routes have in common."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tgi_api.schemas.sampling import (
    UINT64_MAX,
    IgnoreEos,
    LogitBias,
    LogitsRules,
    MinP,
    RepetitionPenalty,
    TopK,
    TopP,
    TypicalP,
    bounds,
)
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
    top_p: TopP = None
    frequency_penalty: Annotated[
        float | None, bounds("Subtracted for each time a token was generated; 0 is off", minimum=-2, maximum=2)
    ] = None
    presence_penalty: Annotated[
        float | None, bounds("Subtracted once from each token that was generated; 0 is off", minimum=-2, maximum=2)
    ] = None
    logit_bias: LogitBias = None
    seed: Annotated[int | None, bounds("Seed of the sampling", minimum=0, maximum=UINT64_MAX)] = None
    stop: Annotated[
        list[str] | str | None, Meta(description="Texts that end the generation; they are not returned")
    ] = None
    stream: Annotated[bool | None, Meta(description="Answer with server-sent events")] = None
    stream_options: StreamOptions | None = None
    n: Annotated[int | None, bounds("How many choices", minimum=1, maximum=128)] = None
    best_of: Annotated[
        int | None, bounds("Generate this many and return the n most likely ones; not streamed", minimum=1, maximum=128)
    ] = None
    response_format: Annotated[
        dict[str, Any] | None,
        bounds(
            "A constraint on the output: text, json_object, or a schema in OpenAI's form or TGI's",
            examples=[{"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}],
        ),
    ] = None
    top_k: TopK = None
    min_p: MinP = None
    typical_p: TypicalP = None
    repetition_penalty: RepetitionPenalty = None
    logits_rules: LogitsRules = None
    min_tokens: Annotated[int | None, bounds("No end of sequence and no stop before so many tokens", minimum=0)] = None
    ignore_eos: IgnoreEos = None
    include_stop_str_in_output: Annotated[bool | None, Meta(description="Keep the text of the stop")] = None
    structured_outputs: Annotated[
        dict[str, Any] | None,
        Meta(description="A constraint on the output under one of json, json_object, regex, choice, grammar"),
    ] = None
    guided_json: Annotated[dict[str, Any] | str | None, Meta(description="A JSON schema that the output fits")] = None
    guided_regex: Annotated[str | None, Meta(description="A regular expression that the output matches")] = None
    guided_choice: Annotated[list[str] | None, Meta(description="Texts of which the output is one")] = None
    guided_grammar: Annotated[str | None, Meta(description="A grammar that the output follows")] = None

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with a chunk of token counts."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class Usage(msgspec.Struct, frozen=True):
    """Token counts; EOS is one of the completion's tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
