"""Bodies and replies of TGI's own generate routes."""

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


class GenerateParameters(requests.GenerateParameters, frozen=True, kw_only=True):
    """How to generate. An explicit null means "not given"."""

    best_of: Annotated[int | None, bounds("Generate this many and return the most likely one", minimum=1)] = None
    temperature: Annotated[float | None, bounds("Divides the logits", exclusiveMinimum=0, examples=[0.5])] = None
    repetition_penalty: RepetitionPenalty = None
    frequency_penalty: Annotated[
        float | None,
        bounds("Subtracted times a token's share of prompt and output; 0 is off", minimum=-2, maximum=2),
    ] = None
    top_k: TopK = None
    top_p: TopP = None
    typical_p: TypicalP = None
    do_sample: Annotated[
        bool | None, Meta(description="Sample; false is greedy unless another parameter implies sampling")
    ] = None
    max_new_tokens: Annotated[
        int | None, bounds("Most tokens to generate; the rest of the context when left out", minimum=1)
    ] = None
    return_full_text: Annotated[bool | None, Meta(description="Put the prompt in front of generated_text")] = None
    stop: Annotated[
        list[str] | str | None, Meta(description="Texts that end the generation; they stay in the text")
    ] = None
    truncate: Annotated[int | None, bounds("Keep this many tokens from the end of the prompt", minimum=1)] = None
    watermark: Annotated[bool | None, Meta(description="Watermark the output with the server's settings")] = None
    details: Annotated[bool | None, Meta(description="Return the tokens and why generation ended")] = None
    decoder_input_details: Annotated[
        bool | None, Meta(description="Return the tokens of the prompt and their log-probabilities")
    ] = None
    seed: Annotated[int | None, bounds("Seed of the sampling", minimum=0, maximum=UINT64_MAX)] = None
    top_n_tokens: Annotated[int | None, bounds("Most likely tokens to return at each position", minimum=0)] = None
    grammar: Annotated[
        dict[str, Any] | None,
        bounds("A constraint on the output", examples=[{"type": "regex", "value": "yes|no"}]),
    ] = None
    adapter_id: Annotated[str | None, Meta(description="Refused: the adapter to use")] = None
    min_p: MinP = None
    logit_bias: LogitBias = None
    logits_rules: LogitsRules = None
    min_new_tokens: Annotated[int | None, bounds("No end of sequence and no stop before so many tokens", minimum=0)] = (
        None
    )
    min_tokens: Annotated[int | None, bounds("Another name of min_new_tokens, which wins", minimum=0)] = None
    ignore_eos: IgnoreEos = None


class GenerateRequest(msgspec.Struct, frozen=True):
    """A prompt to continue."""

    inputs: Annotated[str, bounds("The prompt", examples=["My name is Olivier and I"], minLength=1)]
    parameters: Annotated[
        GenerateParameters | None,
        Meta(description="Left out altogether the request samples; an empty object is greedy, as in TGI"),
    ] = None


class CompatGenerateRequest(GenerateRequest, frozen=True):
    """A prompt to continue, plain or streamed."""

    stream: Annotated[bool | None, Meta(description="Answer with server-sent events")] = None


FinishReason = Annotated[str, Meta(extra_json_schema={"enum": ["length", "eos_token", "stop_sequence"]})]


class PrefillToken(msgspec.Struct, frozen=True):
    """A token of the prompt; the first has no log-probability."""

    id: int
    text: str
    logprob: float | None


class Token(msgspec.Struct, frozen=True):
    """A generated token; a log-probability that is not finite is null."""

    id: int
    text: str
    logprob: float | None
    special: bool


class BestOfSequence(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of the sequences that were less likely than the one returned."""

    generated_text: str
    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None
    prefill: list[PrefillToken]
    tokens: list[Token]
    top_tokens: list[list[Token]] | None = None


class Details(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a generation went; seed is null when it was greedy. The last two are there only when asked for."""

    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None
    prefill: list[PrefillToken]
    tokens: list[Token]
    best_of_sequences: list[BestOfSequence] | None = None
    top_tokens: list[list[Token]] | None = None


class GenerateResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result; details only when asked for."""

    generated_text: str
    details: Details | None = None


class StreamDetails(msgspec.Struct, frozen=True):
    """How a streamed generation went, in its last event."""

    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None
    input_length: int


class StreamResponse(msgspec.Struct, frozen=True, kw_only=True):
    """One event: one token. The last one has the whole text, and details when asked for."""

    index: int
    token: Token
    top_tokens: list[Token] | None = None
    generated_text: str | None
    details: StreamDetails | None
