"""What clients of other servers ask for and this one cannot do: refused, as ignoring it would change the result."""

from __future__ import annotations

from tgi_core.errors import ValidationError
from tgi_core.requests.parameters import OpenAIParameters

_ADVICE = {
    "use_beam_search": "leave it out, or let `n` and `best_of` choose among samples",
    "prompt_logprobs": "use `echo` with `logprobs` on /v1/completions",
    "return_tokens_as_token_ids": "leave it out; /tokenize tells the ids of a text",
    "return_token_ids": "leave it out; /tokenize tells the ids of a text",
    "cache_salt": "leave it out; prompts share cached prefixes",
    "prompt_embeds": "send a text or token ids",
    "logits_processors": "use `logit_bias`, `allowed_token_ids`, `bad_words` or `logits_rules`",
    "audio": "leave it out; the model generates text",
    "functions": "it is an old form of `tools`; send those",
    "function_call": "it is an old form of `tool_choice`; send that",
    "web_search_options": "leave it out; the server searches nothing",
}


def refuse_unsupported(given: OpenAIParameters) -> None:
    """Refuse fields whose values ask for what this version cannot do.

    Raises:
        ValidationError: one of them does; the message says what to do instead.
    """
    for name, advice in _ADVICE.items():
        value = getattr(given, name)
        if value is not None and value is not False:
            raise ValidationError(f"`{name}` is not supported: {advice}")
    if given.modalities is not None and set(given.modalities) != {"text"}:
        raise ValidationError('`modalities` must be ["text"]: the model generates text')
