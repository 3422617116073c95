"""The parameters of a request as clients send them; absent and null mean the same."""

from __future__ import annotations

from typing import Any

import msgspec


class GenerateParameters(msgspec.Struct, frozen=True, kw_only=True):
    """``parameters`` of TGI's generate routes.

    Values are unchecked; ``validate_generate`` gives their meaning. ``details`` and ``return_full_text`` only shape
    the response and are read by the routes. What follows ``adapter_id`` is not TGI's.
    """

    best_of: int | None = None
    temperature: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    typical_p: float | None = None
    do_sample: bool | None = None
    max_new_tokens: int | None = None
    return_full_text: bool | None = None
    stop: list[str] | str | None = None
    truncate: int | None = None
    watermark: bool | None = None
    details: bool | None = None
    decoder_input_details: bool | None = None
    seed: int | None = None
    top_n_tokens: int | None = None
    grammar: dict[str, Any] | None = None
    adapter_id: str | None = None
    min_p: float | None = None
    logit_bias: dict[str, float] | list[float] | None = None
    logits_rules: dict[str, float] | None = None
    min_new_tokens: int | None = None
    min_tokens: int | None = None
    """Another name of ``min_new_tokens``, which wins."""
    ignore_eos: bool | None = None


class OpenAIParameters(msgspec.Struct, frozen=True, kw_only=True):
    """What chat and completion requests have in common; their structs extend this one.

    Values are unchecked; ``validate_openai`` gives their meaning. What follows ``tool_choice`` are extensions, most of
    which other servers also take.
    """

    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | list[float] | None = None
    seed: int | None = None
    stop: list[str] | str | None = None
    stream: bool | None = None
    n: int | None = None
    best_of: int | None = None
    echo: bool | None = None
    logprobs: bool | int | None = None
    """Chat: whether to list log-probabilities. Completions: for how many of the best tokens."""
    top_logprobs: int | None = None
    response_format: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    logits_rules: dict[str, float] | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    stop_token_ids: list[int] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    skip_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    priority: int | None = None
    request_id: str | None = None
    use_beam_search: bool | None = None
    prompt_logprobs: int | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    cache_salt: str | None = None
    prompt_embeds: Any = None
    logits_processors: Any = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None
    web_search_options: dict[str, Any] | None = None
    functions: Any = None
    function_call: Any = None
