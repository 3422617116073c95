"""What a device cannot do is refused by the field's own name, and nothing else is."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tgi_core.errors import ValidationError
from tgi_core.requests import (
    GenerateParameters,
    GenerationOptions,
    OpenAIParameters,
    RequestLimits,
    keep_supported,
    validate_generate,
    validate_openai,
)
from tgi_core.sampling.defaults import SamplingDefaults
from tgi_core.sampling.params import SamplingParams

ABILITIES = ("logprobs", "prompt_logprobs")
NOT_ASKED_FOR = {"watermark_gamma"}
"""A setting of the server."""

LIMITS = RequestLimits(
    max_input_tokens=100, max_total_tokens=128, vocab_size=500, extra_parameters=frozenset({"strength"})
)

ALIKE = [
    ("temperature", {"temperature": 0.5}, "temperature"),
    ("top_k", {"top_k": 5}, "top_k"),
    ("top_p", {"top_p": 0.9}, "top_p"),
    ("typical_p", {"typical_p": 0.9}, "typical_p"),
    ("min_p", {"min_p": 0.1}, "min_p"),
    ("repetition_penalty", {"repetition_penalty": 1.1}, "repetition_penalty"),
    ("logit_bias", {"logit_bias": {"5": 1.0}}, "logit_bias"),
    ("min_tokens", {"min_tokens": 2}, "min_tokens"),
    ("extra", {"logits_rules": {"strength": 1.0}}, "logits_rules"),
]
"""What both kinds of routes call alike: (name, request, field)."""

GENERATE = [
    *ALIKE,
    ("do_sample", {"do_sample": True}, "do_sample"),
    ("relative_frequency_penalty", {"frequency_penalty": 0.5}, "frequency_penalty"),
    ("seed", {"seed": 0, "do_sample": True}, "seed"),
    ("min_tokens", {"min_new_tokens": 2}, "min_new_tokens"),
    ("watermark_delta", {"watermark": True}, "watermark"),
    ("top_n", {"top_n_tokens": 2}, "top_n_tokens"),
    ("choice", {"best_of": 2, "do_sample": True}, "best_of"),
    ("logprobs", {"top_n_tokens": 2}, "top_n_tokens"),
    ("logprobs", {"best_of": 2, "do_sample": True}, "best_of"),
    ("prompt_logprobs", {"decoder_input_details": True}, "decoder_input_details"),
]

OPENAI = [
    *ALIKE,
    ("do_sample", {}, "temperature"),
    ("frequency_penalty", {"frequency_penalty": 0.5}, "frequency_penalty"),
    ("presence_penalty", {"presence_penalty": 0.5}, "presence_penalty"),
    ("seed", {"seed": 7}, "seed"),
    ("allowed_token_ids", {"allowed_token_ids": [5]}, "allowed_token_ids"),
    ("bad_words", {"bad_words": ["a"]}, "bad_words"),
    ("top_n", {"logprobs": True, "top_logprobs": 2}, "top_logprobs"),
    ("top_n", {"logprobs": 2}, "logprobs"),
    ("raw_logprobs", {"logprobs": True}, "logprobs"),
    ("choice", {"n": 2}, "n"),
    ("choice", {"best_of": 2}, "best_of"),
    ("logprobs", {"logprobs": True}, "logprobs"),
    ("logprobs", {"logprobs": 0}, "logprobs"),
    ("logprobs", {"best_of": 2}, "best_of"),
    ("prompt_logprobs", {"echo": True, "logprobs": 0}, "echo"),
]


def limits(*names: str) -> RequestLimits:
    return replace(LIMITS, unsupported={name: f"{name} is beyond it" for name in names})


def generate(limits: RequestLimits, **given: Any) -> GenerationOptions:
    return validate_generate("x", msgspec.convert(given, GenerateParameters), limits, stream=False)


def openai(limits: RequestLimits, **given: Any) -> GenerationOptions:
    return validate_openai(msgspec.convert(given, OpenAIParameters), limits)


@pytest.mark.parametrize(
    ("validate", "name", "given", "field"),
    [*((generate, *case) for case in GENERATE), *((openai, *case) for case in OPENAI)],
)
def test_what_is_asked_for_is_refused_by_its_own_name(
    validate: Any, name: str, given: dict[str, Any], field: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        validate(limits(name), **given)
    assert caught.value.detail == f"`{field}` is not supported here: {name} is beyond it"
    assert caught.value.param == field
    validate(LIMITS, **given)


def test_every_name_that_a_shard_may_use_is_tried() -> None:
    tried = {name for name, _, _ in (*GENERATE, *OPENAI)}
    assert tried == {*SamplingParams.__struct_fields__, *ABILITIES} - NOT_ASKED_FOR


EVERYTHING = limits(*{*SamplingParams.__struct_fields__, *ABILITIES} - NOT_ASKED_FOR)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"temperature": 1.0, "top_p": 1.0, "repetition_penalty": 1.0, "frequency_penalty": 0.0, "top_k": 0},
        {"seed": 7, "best_of": 1, "top_n_tokens": 0, "watermark": False, "do_sample": False, "details": True},
        {"grammar": None, "decoder_input_details": False, "logit_bias": {}, "min_tokens": 0},
    ],
)
def test_neutral_values_of_generate_are_taken(given: dict[str, Any]) -> None:
    """A greedy request has no use for its seed."""
    assert generate(EVERYTHING, **given).sampling == generate(LIMITS, **given).sampling


@pytest.mark.parametrize(
    "given",
    [
        {"temperature": 0.0},
        {"temperature": 0.0, "seed": 7, "top_p": 0.5, "min_p": 0.1, "typical_p": 0.5},
        {"temperature": 0.0, "n": 1, "best_of": 1, "logprobs": False, "presence_penalty": 0.0, "bad_words": []},
        {"temperature": 0.0, "response_format": {"type": "text"}, "echo": True, "tools": []},
    ],
)
def test_neutral_values_of_openai_are_taken(given: dict[str, Any]) -> None:
    assert not openai(EVERYTHING, **given).sampling.do_sample


def test_choices_without_log_probabilities_are_not_compared() -> None:
    assert openai(limits("logprobs"), n=3).best_of == 3


def test_a_seed_that_does_nothing_is_not_told() -> None:
    assert generate(LIMITS, do_sample=True).seed is not None
    assert generate(limits("seed"), do_sample=True).seed is None
    assert openai(limits("seed")).seed is None


def test_of_a_models_defaults_the_supported_ones_stay() -> None:
    defaults = SamplingDefaults(do_sample=False, temperature=0.7, top_k=20, repetition_penalty=1.0, min_p=0.1)
    kept = keep_supported(defaults, {"repetition_penalty": "", "min_p": "", "do_sample": "", "top_k": "", "seed": ""})
    assert kept == SamplingDefaults(do_sample=False, temperature=0.7, repetition_penalty=1.0)
