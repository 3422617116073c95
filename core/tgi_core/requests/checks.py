"""Checks of single values: each returns the value, or what stands for none, and refuses what is out of range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tgi_core.errors import ValidationError
from tgi_core.requests.options import RequestLimits
from tgi_core.sampling.params import MAX_BAD_WORDS, MAX_LOGIT_BIASES

FLOAT32_MAX = 3.4028234663852886e38
FLOAT32_SMALLEST_NORMAL = 1.1754943508222875e-38
INT32_MAX = 2**31 - 1
UINT64_MAX = 2**64 - 1

MAX_STOP_TOKEN_IDS = 128

MAX_LOGIT_BIAS = 100.0
"""OpenAI's bound: such a bias bans a token or leaves no other."""


def raise_limit(flag: str, needed: int) -> str:
    """The end of a message about a limit that ``flag`` sets: what it would have to be; "" for what no value allows."""
    return f". To allow it, start the server with {flag} {needed} or more" if needed > 0 else ""


def is_float32(value: float) -> bool:
    """Whether the value is finite as a 32-bit float."""
    return abs(value) <= FLOAT32_MAX  # NaN compares false


def number(name: str, value: float) -> float:
    """The value, a finite 32-bit float."""
    if not is_float32(value):
        raise ValidationError(f"`{name}` must be a finite 32-bit float. Given: {value}")
    return value


def positive(name: str, value: float | None) -> float:
    """The value, 1.0 for none: the neutral value of all parameters that must be positive."""
    if value is None:
        return 1.0
    if number(name, value) < FLOAT32_SMALLEST_NORMAL:
        raise ValidationError(f"`{name}` must be strictly positive. Given: {value}")
    return value


def probability(name: str, value: float | None) -> float:
    """The value, 1.0 for none."""
    if value is None:
        return 1.0
    if not 0.0 < number(name, value) <= 1.0:
        raise ValidationError(f"`{name}` must be > 0.0 and <= 1.0. Given: {value}")
    return value


def between(name: str, value: float | None, lowest: float, highest: float) -> float:
    """The value, 0.0 for none."""
    if value is None:
        return 0.0
    if not lowest <= number(name, value) <= highest:
        raise ValidationError(f"`{name}` must be >= {lowest} and <= {highest}. Given: {value}")
    return value


def strictly_positive(name: str, value: int | None) -> int | None:
    """The value."""
    if value is not None and value < 1:
        raise ValidationError(f"`{name}` must be strictly positive. Given: {value}")
    return value


def at_most(name: str, value: int | None, limit: int, flag: str = "") -> int:
    """The value, 0 for none; ``flag`` sets the limit, where one does."""
    if value is None:
        return 0
    if not 0 <= value <= limit:
        advice = raise_limit(flag, value) if flag else ""
        raise ValidationError(f"`{name}` must be >= 0 and <= {limit}. Given: {value}{advice}")
    return value


def min_tokens(name: str, value: int | None, limits: RequestLimits, max_tokens: int | None) -> int:
    """The value, 0 for none."""
    limit = limits.max_total_tokens if max_tokens is None else min(max_tokens, limits.max_total_tokens)
    return at_most(name, value, limit)


def top_k(value: int | None) -> int:
    """The value, 0 for none; 0 and -1 are other servers' words for none."""
    if value is None or value in (0, -1):
        return 0
    if not 0 < value <= INT32_MAX:
        raise ValidationError(f"`top_k` must be strictly positive and at most {INT32_MAX}. Given: {value}")
    return value


def stop(value: list[str] | str | None, limits: RequestLimits) -> tuple[str, ...]:
    """The distinct stop strings."""
    stops = [value] if isinstance(value, str) else value or []
    if len(stops) > limits.max_stop_sequences:
        raise ValidationError(
            f"`stop` takes at most {limits.max_stop_sequences} strings. Given: {len(stops)}"
            + raise_limit("--max-stop-sequences", len(stops))
        )
    if "" in stops:
        raise ValidationError("`stop` must not hold an empty string")
    return tuple(dict.fromkeys(stops))


def seed(value: int | None) -> int | None:
    """The value, an unsigned 64-bit number."""
    if value is not None and not 0 <= value <= UINT64_MAX:
        raise ValidationError(f"`seed` must be >= 0 and <= {UINT64_MAX}. Given: {value}")
    return value


def logit_bias(value: Mapping[str, float] | list[float] | None, limits: RequestLimits) -> dict[int, float]:
    """Biases other than 0 by token id."""
    if not value:
        return {}
    if not isinstance(value, Mapping):
        raise ValidationError('`logit_bias` must be an object from token ids to biases: {"50256": -100}. Given: a list')
    if len(value) > MAX_LOGIT_BIASES:
        raise ValidationError(f"`logit_bias` takes at most {MAX_LOGIT_BIASES} tokens. Given: {len(value)}")
    biases = {}
    for token, bias in value.items():
        # int() alone would also take "1_0", " 1" and digits of other scripts.
        if not (token.isascii() and token.isdigit() and len(token) < 12 and int(token) < limits.vocab_size):
            raise ValidationError(f"`logit_bias` must name token ids below {limits.vocab_size}. Given: {token[:40]!r}")
        if not is_float32(bias):
            raise ValidationError(f"`logit_bias` must hold finite 32-bit floats. Given: {bias}")
        if abs(bias) > MAX_LOGIT_BIAS:
            raise ValidationError(
                f"`logit_bias` must hold values from {-MAX_LOGIT_BIAS} to {MAX_LOGIT_BIAS}. Given: {bias}"
            )
        if bias:
            biases[int(token)] = bias
    return biases


def token_ids(name: str, value: Sequence[int] | None, limits: RequestLimits, max_count: int) -> tuple[int, ...]:
    """The ids, all of the model's vocabulary."""
    ids = value or ()
    if len(ids) > max_count:
        raise ValidationError(f"`{name}` takes at most {max_count} token ids. Given: {len(ids)}")
    for token_id in ids:
        if not 0 <= token_id < limits.vocab_size:
            raise ValidationError(f"`{name}` must hold token ids below {limits.vocab_size}. Given: {token_id}")
    return tuple(ids)


def stop_token_ids(value: Sequence[int] | None, limits: RequestLimits) -> tuple[int, ...]:
    """The distinct tokens that end the text."""
    return tuple(dict.fromkeys(token_ids("stop_token_ids", value, limits, MAX_STOP_TOKEN_IDS)))


def allowed_token_ids(value: Sequence[int] | None, limits: RequestLimits) -> tuple[int, ...]:
    """The distinct tokens that may be chosen; empty for all."""
    if value is not None and not value:
        raise ValidationError("`allowed_token_ids` must not be empty: leave it out to allow every token")
    return tuple(dict.fromkeys(token_ids("allowed_token_ids", value, limits, MAX_LOGIT_BIASES)))


def bad_words(value: Sequence[str] | None) -> tuple[str, ...]:
    """The distinct texts that the output must not have."""
    words = value or ()
    # Each may have two forms, with and without a space in front.
    if len(words) > MAX_BAD_WORDS // 2:
        raise ValidationError(f"`bad_words` takes at most {MAX_BAD_WORDS // 2} texts. Given: {len(words)}")
    if not all(word.strip() for word in words):
        raise ValidationError("`bad_words` must hold no blank text")
    return tuple(dict.fromkeys(words))


def truncate_prompt_tokens(value: int | None, limits: RequestLimits) -> int | None:
    """The value; -1 is vLLM's word for all that the server takes."""
    if value is None:
        return None
    if value == -1:
        return limits.max_input_tokens
    if not 0 < value <= limits.max_input_tokens:
        raise ValidationError(
            f"`truncate_prompt_tokens` must be -1, or strictly positive and at most {limits.max_input_tokens}. "
            f"Given: {value}" + raise_limit("--max-input-tokens", value)
        )
    return value


def priority(value: int | None) -> None:
    """Refuse a priority: requests are served in the order they come."""
    if value:
        raise ValidationError(
            f"`priority` must be 0: this server serves requests in the order they come (FCFS). Given: {value}"
        )


def logits_rules(value: Mapping[str, float] | None, limits: RequestLimits) -> dict[str, float]:
    """Parameters of plugins' rules by name."""
    parameters = dict(value or {})
    for name, parameter in parameters.items():
        if name not in limits.extra_parameters:
            known = ", ".join(f"`{known}`" for known in sorted(limits.extra_parameters)) or "none"
            raise ValidationError(f"`logits_rules` takes what plugins offer: {known}. Given: {name[:80]!r}")
        number("logits_rules", parameter)
    return parameters
