"""Checks of request parameters, in TGI's order: the first one that fails is reported."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from typing import TypeVar

from tgi_core.errors import ValidationError
from tgi_core.requests.options import GenerationOptions, RequestLimits
from tgi_core.requests.parameters import GenerateParameters, OpenAIParameters
from tgi_core.sampling.params import SamplingParams

FLOAT32_MAX = 3.4028234663852886e38
FLOAT32_SMALLEST_NORMAL = 1.1754943508222875e-38
INT32_MAX = 2**31 - 1
UINT64_MAX = 2**64 - 1

MIN_TEMPERATURE = 1e-5
"""Below it every distribution is a point, and dividing logits by much less overflows float32."""

Given = TypeVar("Given", GenerateParameters, OpenAIParameters)

_NOT_YET_GENERATE: tuple[tuple[str, Callable[[GenerateParameters], bool]], ...] = (
    ("best_of", lambda given: (given.best_of or 1) > 1),
    ("frequency_penalty", lambda given: bool(given.frequency_penalty)),
    ("typical_p", lambda given: given.typical_p not in (None, 1.0)),
    ("watermark", lambda given: bool(given.watermark)),
    ("top_n_tokens", lambda given: bool(given.top_n_tokens)),
    ("grammar", lambda given: bool(given.grammar)),
    ("adapter_id", lambda given: bool(given.adapter_id)),
)
"""What this version cannot do, and when a request asks for it."""

_NOT_YET_OPENAI: tuple[tuple[str, Callable[[OpenAIParameters], bool]], ...] = (
    ("n", lambda given: (given.n or 1) > 1),
    ("best_of", lambda given: (given.best_of or 1) > 1),
    ("echo", lambda given: bool(given.echo)),
    ("frequency_penalty", lambda given: bool(given.frequency_penalty)),
    ("presence_penalty", lambda given: bool(given.presence_penalty)),
    ("logit_bias", lambda given: bool(given.logit_bias)),
    ("min_p", lambda given: bool(given.min_p)),
    # True is chat's switch for the chosen tokens' log-probabilities, which every request has.
    ("logprobs", lambda given: not isinstance(given.logprobs, bool) and bool(given.logprobs)),
    ("top_logprobs", lambda given: bool(given.top_logprobs)),
    ("response_format", lambda given: (given.response_format or {}).get("type", "text") != "text"),
    ("tools", lambda given: bool(given.tools) and given.tool_choice != "none"),
)


def validate_generate(
    inputs: str, parameters: GenerateParameters | None, limits: RequestLimits, *, stream: bool
) -> GenerationOptions:
    """Options of a request to TGI's generate routes.

    A request without ``parameters`` samples; one with them only when they say so (``do_sample``, or a temperature
    other than 1, ``top_k`` or ``top_p`` that cut something off).

    Raises:
        ValidationError: a value is out of its range, or asks for something this version cannot do.
    """
    given = GenerateParameters(do_sample=True) if parameters is None else parameters
    _check_best_of(given, limits, stream=stream)
    if stream and given.decoder_input_details:
        raise ValidationError("`decoder_input_details` must be false when streaming")
    temperature = _positive("temperature", given.temperature)
    repetition_penalty = _positive("repetition_penalty", given.repetition_penalty)
    _between("frequency_penalty", given.frequency_penalty, -2.0, 2.0)
    top_p = _probability("top_p", given.top_p)
    typical_p = _probability("typical_p", given.typical_p)
    top_k = _top_k(given.top_k)
    _strictly_positive("max_new_tokens", given.max_new_tokens)
    stop = _stop(given.stop, limits)
    if given.seed is not None and (given.best_of or 1) > 1:
        raise ValidationError("`seed` must be absent when `best_of` > 1, each sequence draws its own")
    _at_most("top_n_tokens", given.top_n_tokens, limits.max_top_n_tokens)
    require_inputs(inputs)
    if given.truncate is not None and not 0 < given.truncate <= limits.max_input_tokens:
        raise ValidationError(
            f"`truncate` must be strictly positive and at most {limits.max_input_tokens}. Given: {given.truncate}"
        )
    seed = _seed(given.seed)
    _refuse_not_yet(given, _NOT_YET_GENERATE)
    do_sample = bool(given.do_sample) or temperature != 1.0 or top_k > 0 or top_p < 1.0 or typical_p < 1.0
    return GenerationOptions(
        sampling=_sampling(
            do_sample=do_sample,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
        ),
        max_new_tokens=given.max_new_tokens,
        clamp_new_tokens=True,
        stop=stop,
        truncate=given.truncate,
        ignore_eos=bool(given.ignore_eos),
    )


def validate_openai(given: OpenAIParameters, limits: RequestLimits) -> GenerationOptions:
    """Options of a chat or completion request; it samples unless its temperature is exactly 0.

    Raises:
        ValidationError: a value is out of its range, or asks for something this version cannot do.
    """
    greedy = given.temperature == 0.0
    temperature = 1.0 if greedy else _positive("temperature", given.temperature)
    repetition_penalty = _positive("repetition_penalty", given.repetition_penalty)
    _between("frequency_penalty", given.frequency_penalty, -2.0, 2.0)
    _between("presence_penalty", given.presence_penalty, -2.0, 2.0)
    top_p = _probability("top_p", given.top_p)
    _between("min_p", given.min_p, 0.0, 1.0)
    top_k = _top_k(given.top_k)
    _strictly_positive("max_tokens", given.max_tokens)
    _strictly_positive("max_completion_tokens", given.max_completion_tokens)
    stop = _stop(given.stop, limits)
    _strictly_positive("n", given.n)
    _strictly_positive("best_of", given.best_of)
    _at_most("top_logprobs", given.top_logprobs, limits.max_top_n_tokens)
    if not isinstance(given.logprobs, bool):
        _at_most("logprobs", given.logprobs, limits.max_top_n_tokens)
    _check_logit_bias(given.logit_bias)
    seed = _seed(given.seed)
    _refuse_not_yet(given, _NOT_YET_OPENAI)
    return GenerationOptions(
        sampling=_sampling(
            do_sample=not greedy,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
        ),
        max_new_tokens=given.max_tokens if given.max_completion_tokens is None else given.max_completion_tokens,
        stop=stop,
        ignore_eos=bool(given.ignore_eos),
    )


def require_inputs(inputs: str) -> None:
    """Refuse an empty prompt.

    Raises:
        ValidationError: it is empty.
    """
    if not inputs:
        raise ValidationError("`inputs` must not be empty")


def _check_best_of(given: GenerateParameters, limits: RequestLimits, *, stream: bool) -> None:
    best_of = given.best_of or 1  # TGI takes 0 as 1
    if best_of < 1 or best_of > limits.max_best_of:
        raise ValidationError(f"`best_of` must be > 0 and <= {limits.max_best_of}. Given: {best_of}")
    if best_of == 1:
        return
    if stream:
        raise ValidationError(f"`best_of` must be 1 when streaming. Given: {best_of}")
    # Looser than what makes a request sample: here TGI looks at what was sent, not at whether it has an effect.
    warpers = (given.temperature, given.top_k, given.top_p, given.typical_p)
    if not given.do_sample and all(value is None for value in warpers):
        raise ValidationError(f"`best_of` > 1 needs sampling: set `do_sample`. Given: {best_of}")


def _sampling(
    *, do_sample: bool, temperature: float, top_k: int, top_p: float, repetition_penalty: float, seed: int | None
) -> SamplingParams:
    if not do_sample:
        return SamplingParams(repetition_penalty=repetition_penalty)
    return SamplingParams(
        do_sample=True,
        temperature=max(temperature, MIN_TEMPERATURE),
        top_k=top_k,
        top_p=top_p,
        repetition_penalty=repetition_penalty,
        seed=secrets.randbits(64) if seed is None else seed,
    )


def _refuse_not_yet(given: Given, not_yet: tuple[tuple[str, Callable[[Given], bool]], ...]) -> None:
    for name, asks in not_yet:
        if asks(given):
            raise ValidationError(f"`{name}` is not supported yet")


def _float(name: str, value: float) -> float:
    if not abs(value) <= FLOAT32_MAX:  # NaN compares false
        raise ValidationError(f"`{name}` must be a finite 32-bit float. Given: {value}")
    return value


def _positive(name: str, value: float | None) -> float:
    """The value, 1.0 for none: the neutral value of all parameters that must be positive."""
    if value is None:
        return 1.0
    if _float(name, value) < FLOAT32_SMALLEST_NORMAL:
        raise ValidationError(f"`{name}` must be strictly positive. Given: {value}")
    return value


def _probability(name: str, value: float | None) -> float:
    """The value, 1.0 for none."""
    if value is None:
        return 1.0
    if not 0.0 < _float(name, value) <= 1.0:
        raise ValidationError(f"`{name}` must be > 0.0 and <= 1.0. Given: {value}")
    return value


def _between(name: str, value: float | None, lowest: float, highest: float) -> None:
    if value is not None and not lowest <= _float(name, value) <= highest:
        raise ValidationError(f"`{name}` must be >= {lowest} and <= {highest}. Given: {value}")


def _strictly_positive(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise ValidationError(f"`{name}` must be strictly positive. Given: {value}")


def _at_most(name: str, value: int | None, limit: int) -> None:
    if value is not None and not 0 <= value <= limit:
        raise ValidationError(f"`{name}` must be >= 0 and <= {limit}. Given: {value}")


def _top_k(value: int | None) -> int:
    """The value, 0 for none; 0 and -1 are other servers' words for none."""
    if value is None or value in (0, -1):
        return 0
    if not 0 < value <= INT32_MAX:
        raise ValidationError(f"`top_k` must be strictly positive and at most {INT32_MAX}. Given: {value}")
    return value


def _stop(value: list[str] | str | None, limits: RequestLimits) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value or []
    if len(stops) > limits.max_stop_sequences:
        raise ValidationError(f"`stop` takes at most {limits.max_stop_sequences} strings. Given: {len(stops)}")
    if "" in stops:
        raise ValidationError("`stop` must not hold an empty string")
    return tuple(dict.fromkeys(stops))


def _seed(value: int | None) -> int | None:
    if value is not None and not 0 <= value <= UINT64_MAX:
        raise ValidationError(f"`seed` must be >= 0 and <= {UINT64_MAX}. Given: {value}")
    return value


def _check_logit_bias(biases: dict[str, float] | list[float] | None) -> None:
    values = biases.values() if isinstance(biases, dict) else biases or []
    for value in values:
        if not math.isfinite(value) or abs(value) > FLOAT32_MAX:
            raise ValidationError(f"`logit_bias` must hold finite 32-bit floats. Given: {value}")
