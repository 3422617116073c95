"""What the two OpenAI routes have in common."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tgi_api.request_id import REQUEST_ID
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
    continuous_usage_stats: Annotated[
        bool | None, Meta(description="Send the choice's token counts so far with each chunk; needs include_usage")
    ] = None


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
    stop_token_ids: Annotated[
        list[int] | None, bounds("Tokens that end the text; they are not returned", maxItems=128)
    ] = None
    allowed_token_ids: Annotated[
        list[int] | None, bounds("The only tokens that may be chosen", minItems=1, maxItems=1024)
    ] = None
    bad_words: Annotated[
        list[str] | None, bounds("Texts that the output must not have, each of at most 16 tokens", maxItems=64)
    ] = None
    skip_special_tokens: Annotated[
        bool | None, Meta(description="Leave special tokens out of the text; true by default")
    ] = None
    truncate_prompt_tokens: Annotated[
        int | None, bounds("Keep this many tokens from the end of the prompt; -1: as many as are served", minimum=-1)
    ] = None
    add_special_tokens: Annotated[
        bool | None, Meta(description="Put BOS in front of a text; by default in completions, not in chats")
    ] = None
    priority: Annotated[int | None, bounds("Only 0: requests are served in the order they come")] = None
    request_id: Annotated[
        str | None,
        bounds("What to call the request; by default the X-Request-Id header, or a random id", pattern=REQUEST_ID),
    ] = None
    use_beam_search: Annotated[bool | None, Meta(description="Refused")] = None
    prompt_logprobs: Annotated[int | None, Meta(description="Refused: use echo with logprobs")] = None
    return_tokens_as_token_ids: Annotated[bool | None, Meta(description="Refused")] = None
    return_token_ids: Annotated[bool | None, Meta(description="Refused")] = None
    cache_salt: Annotated[str | None, Meta(description="Refused")] = None
    prompt_embeds: Annotated[Any, Meta(description="Refused")] = None
    logits_processors: Annotated[Any, Meta(description="Refused: use logits_rules")] = None
    modalities: Annotated[list[str] | None, bounds('Only ["text"]', examples=[["text"]])] = None
    audio: Annotated[dict[str, Any] | None, Meta(description="Refused")] = None
    web_search_options: Annotated[dict[str, Any] | None, Meta(description="Refused")] = None
    functions: Annotated[Any, Meta(description="Refused: use tools")] = None
    function_call: Annotated[Any, Meta(description="Refused: use tool_choice")] = None

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with a chunk of token counts."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def includes_all_usage(self) -> bool:
        """Whether every chunk of a stream has its choice's token counts so far."""
        options = self.stream_options
        return options is not None and bool(options.include_usage and options.continuous_usage_stats)


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """More about the prompt's tokens: how many were found in the prefix cache."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Token counts; EOS is one of the completion's tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
