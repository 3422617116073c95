"""Refuses, in a request's own words, what the device cannot do for it: ``ModelShard.unsupported_parameters``."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import asdict, replace

from tgi_core.errors import ValidationError
from tgi_core.requests.options import GenerationOptions
from tgi_core.requests.parameters import GenerateParameters, OpenAIParameters
from tgi_core.sampling.defaults import SamplingDefaults
from tgi_core.sampling.params import SamplingParams

GENERATE_FIELDS: Mapping[str, str] = {
    "relative_frequency_penalty": "frequency_penalty",
    "min_tokens": "min_new_tokens",
    "watermark_delta": "watermark",
    "top_n": "top_n_tokens",
    "raw_logprobs": "logprobs",
    "extra": "logits_rules",
    "choice": "best_of",
    "prompt_logprobs": "decoder_input_details",
}
"""Fields of TGI's generate routes by the names that shards use; all others are called alike."""

_NEUTRAL = SamplingParams()

_NOT_COMPARED = ("seed", "choice", "watermark_gamma")
"""Not told from their values: a drawn seed, an index that comes later, a setting of the server."""


def check_generate(given: GenerateParameters, options: GenerationOptions, unsupported: Mapping[str, str]) -> None:
    """Refuse a request to TGI's generate routes that asks for what the device cannot do.

    Args:
        given: the request's parameters, completed.
        options: what they were read as.
        unsupported: reasons by name.

    Raises:
        ValidationError: it does; the message has the reason.
    """
    fields = {**GENERATE_FIELDS, "logprobs": "top_n_tokens" if given.top_n_tokens else "best_of"}
    if given.min_new_tokens is None:
        fields["min_tokens"] = "min_tokens"
    _check(options, given.seed is not None, fields, unsupported)


def check_openai(given: OpenAIParameters, options: GenerationOptions, unsupported: Mapping[str, str]) -> None:
    """The same for a chat or a completion."""
    fields = {
        "do_sample": "temperature",
        "top_n": "top_logprobs" if given.top_logprobs else "logprobs",
        "raw_logprobs": "logprobs",
        "extra": "logits_rules",
        "choice": "n" if options.n > 1 else "best_of",
        "logprobs": "logprobs" if options.sampling.raw_logprobs else "best_of",
        "prompt_logprobs": "echo",
    }
    _check(options, given.seed is not None, fields, unsupported)


def keep_supported(defaults: SamplingDefaults, unsupported: Mapping[str, str]) -> SamplingDefaults:
    """A model's defaults without those that would have every request refused."""
    dropped = {
        name: None
        for name, value in asdict(defaults).items()
        if name in unsupported and value not in (None, getattr(_NEUTRAL, name))
    }
    return replace(defaults, **dropped)


def _check(
    options: GenerationOptions, seed_is_given: bool, fields: Mapping[str, str], unsupported: Mapping[str, str]
) -> None:
    if not unsupported:
        return
    asked = _asked(options, seed_is_given)
    for name, reason in unsupported.items():
        if name in asked:
            raise ValidationError(f"`{fields.get(name, name)}` is not supported here: {reason}")


def _asked(options: GenerationOptions, seed_is_given: bool) -> set[str]:
    """Names of what the request needs; a greedy one does not need its seed.

    Constraints on the output have a refusal of their own: ``RequestLimits.grammar_obstacle``.
    """
    sampling = options.sampling
    needed = {
        "seed": seed_is_given and sampling.do_sample,
        "choice": options.best_of > 1,
        "bad_words": bool(options.bad_words),
        # The most likely choices are found by them.
        "logprobs": sampling.raw_logprobs or sampling.top_n > 0 or options.best_of > options.n,
        "prompt_logprobs": options.prompt_logprobs,
    }
    for name in SamplingParams.__struct_fields__:
        if name not in (*needed, *_NOT_COMPARED):
            needed[name] = getattr(sampling, name) != getattr(_NEUTRAL, name)
    return {name for name, is_needed in needed.items() if is_needed}
