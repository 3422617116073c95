from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from tgi_core.errors import ValidationError
from tgi_core.requests import (
    GenerateParameters,
    GenerationOptions,
    OpenAIParameters,
    RequestLimits,
    require_inputs,
    validate_generate,
    validate_openai,
)
from tgi_core.sampling.params import SamplingParams

LIMITS = RequestLimits(max_input_tokens=100, max_total_tokens=128)


def generate(inputs: str = "x", *, stream: bool = False, **parameters: Any) -> GenerationOptions:
    return validate_generate(inputs, msgspec.convert(parameters, GenerateParameters), LIMITS, stream=stream)


def openai(**parameters: Any) -> GenerationOptions:
    return validate_openai(msgspec.convert(parameters, OpenAIParameters), LIMITS)


def message_of(call: Any, **parameters: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        call(**parameters)
    return caught.value.detail


class TestSamplingOrNot:
    def test_absent_parameters_sample_and_empty_ones_do_not(self) -> None:
        absent = validate_generate("x", None, LIMITS, stream=False).sampling
        assert (absent.do_sample, absent.temperature, absent.top_p, absent.top_k) == (True, 1.0, 1.0, 0)
        assert generate().sampling == SamplingParams()

    @pytest.mark.parametrize("given", [{"temperature": 0.99}, {"top_k": 5}, {"top_p": 0.9}, {"do_sample": True}])
    def test_what_makes_generate_sample(self, given: dict[str, Any]) -> None:
        assert generate(**given).sampling.do_sample

    @pytest.mark.parametrize(
        "given", [{"temperature": 1.0}, {"top_p": 1.0}, {"top_k": 0}, {"top_k": -1}, {"typical_p": 1.0}, {"seed": 3}]
    )
    def test_what_leaves_generate_greedy(self, given: dict[str, Any]) -> None:
        options = generate(**given)
        assert options.sampling == SamplingParams()
        assert options.seed is None

    def test_openai_samples_unless_the_temperature_is_zero(self) -> None:
        assert openai().sampling.do_sample
        assert openai(temperature=1.5).sampling.temperature == 1.5
        assert openai(temperature=0, top_p=0.5, top_k=3, seed=4).sampling == SamplingParams()

    def test_greedy_keeps_the_repetition_penalty(self) -> None:
        assert openai(temperature=0, repetition_penalty=1.5).sampling == SamplingParams(repetition_penalty=1.5)


class TestSeeds:
    @pytest.mark.parametrize("seed", [0, 42, 2**64 - 1])
    def test_a_seed_is_kept(self, seed: int) -> None:
        assert generate(do_sample=True, seed=seed).seed == seed
        assert openai(seed=seed).seed == seed

    def test_without_one_every_request_draws_its_own(self) -> None:
        seeds = [generate(do_sample=True).seed for _ in range(20)]
        assert len(set(seeds)) == 20
        assert all(seed is not None and 0 <= seed < 2**64 for seed in seeds)

    @pytest.mark.parametrize("seed", [-1, 2**64])
    def test_the_range(self, seed: int) -> None:
        assert "`seed`" in message_of(generate, seed=seed)
        assert "`seed`" in message_of(openai, seed=seed)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("temperature", 0, "must be strictly positive"),
        ("temperature", -1.0, "must be strictly positive"),
        ("temperature", 1e-50, "must be strictly positive"),
        ("repetition_penalty", 0, "must be strictly positive"),
        ("top_p", 0, "must be > 0.0 and <= 1.0"),
        ("top_p", 1.1, "must be > 0.0 and <= 1.0"),
        ("typical_p", 0, "must be > 0.0 and <= 1.0"),
        ("top_k", -2, "must be strictly positive"),
        ("top_k", 2**31, "at most 2147483647"),
        ("max_new_tokens", 0, "must be strictly positive"),
        ("max_new_tokens", -5, "must be strictly positive"),
        ("frequency_penalty", 2.5, "must be >= -2.0 and <= 2.0"),
        ("top_n_tokens", 6, "must be >= 0 and <= 5. Given: 6"),
        ("truncate", 0, "must be strictly positive and at most 100. Given: 0"),
        ("truncate", 101, "must be strictly positive and at most 100. Given: 101"),
        ("best_of", 3, "must be > 0 and <= 2. Given: 3"),
        ("stop", ["a", "b", "c", "d", "e"], "takes at most 4 strings. Given: 5"),
        ("stop", ["a", ""], "empty string"),
    ],
)
def test_ranges_of_generate(field: str, value: Any, message: str) -> None:
    found = message_of(generate, **{field: value})
    assert f"`{field}`" in found
    assert message in found


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("temperature", -0.1, "must be strictly positive"),
        ("top_p", 0, "must be > 0.0 and <= 1.0"),
        ("max_tokens", 0, "must be strictly positive"),
        ("max_completion_tokens", -160, "must be strictly positive"),
        ("presence_penalty", -2.1, "must be >= -2.0 and <= 2.0"),
        ("frequency_penalty", 100.0, "must be >= -2.0 and <= 2.0"),
        ("min_p", 1.5, "must be >= 0.0 and <= 1.0"),
        ("n", 0, "must be strictly positive"),
        ("top_logprobs", 6, "must be >= 0 and <= 5"),
        ("logprobs", 6, "must be >= 0 and <= 5"),
        ("logit_bias", {"5": 1e39}, "finite 32-bit floats"),
        ("stop", ["zq"] * 10_000, "Given: 10000"),
    ],
)
def test_ranges_of_openai(field: str, value: Any, message: str) -> None:
    found = message_of(openai, **{field: value})
    assert f"`{field}`" in found
    assert message in found


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e39])
@pytest.mark.parametrize("field", ["temperature", "repetition_penalty", "top_p", "frequency_penalty"])
def test_floats_that_are_no_32_bit_numbers(field: str, value: float) -> None:
    assert f"`{field}`" in message_of(generate, **{field: value})
    assert f"`{field}`" in message_of(openai, **{field: value})


def test_a_tiny_temperature_is_raised_to_what_float32_can_divide_by() -> None:
    assert generate(temperature=1e-30).sampling.temperature == 1e-5
    assert generate(temperature=1e30).sampling.temperature == 1e30


def test_the_first_failure_in_tgis_order_is_reported() -> None:
    broken: dict[str, Any] = {
        "best_of": 3,
        "temperature": 0,
        "repetition_penalty": 0,
        "frequency_penalty": 9,
        "top_p": 0,
        "typical_p": 0,
        "top_k": -2,
        "max_new_tokens": 0,
        "stop": ["a"] * 5,
        "seed": 1,
        "top_n_tokens": 6,
        "inputs": "",
        "truncate": 0,
        "watermark": True,
    }
    repaired: dict[str, Any] = {"best_of": 2, "inputs": "x", "seed": None, "watermark": False}
    fields = list(broken)
    broken["do_sample"] = True
    for field in fields:
        assert f"`{field}`" in message_of(generate, **broken)
        broken[field] = repaired.get(field)
        if field == "seed":
            broken["best_of"] = None
    generate(**broken)


class TestBestOf:
    def test_it_needs_sampling(self) -> None:
        assert "needs sampling" in message_of(generate, best_of=2)
        # Sending a warper is enough here, even one that changes nothing.
        assert "not supported yet" in message_of(generate, best_of=2, temperature=1.0)

    def test_it_excludes_a_seed_and_streaming(self) -> None:
        assert "`seed`" in message_of(generate, best_of=2, do_sample=True, seed=1)
        assert "streaming" in message_of(generate, best_of=2, do_sample=True, stream=True)

    def test_zero_and_one_are_one(self) -> None:
        assert generate(best_of=0) == generate(best_of=1) == generate()


NOT_YET_GENERATE: list[dict[str, Any]] = [
    {"typical_p": 0.9},
    {"frequency_penalty": 0.5},
    {"watermark": True},
    {"grammar": {"type": "regex", "value": "a"}},
    {"best_of": 2, "do_sample": True},
    {"top_n_tokens": 1},
    {"adapter_id": "a"},
]
NOT_YET_OPENAI: list[dict[str, Any]] = [
    {"frequency_penalty": 0.5},
    {"presence_penalty": -2.0},
    {"logit_bias": {"5": 1.0}},
    {"logit_bias": [1.0]},
    {"min_p": 0.1},
    {"n": 2},
    {"best_of": 2},
    {"echo": True},
    {"logprobs": 1},
    {"top_logprobs": 1},
    {"response_format": {"type": "json_object"}},
    {"tools": [{"type": "function"}]},
    {"tools": [{"type": "function"}], "tool_choice": "required"},
]


@pytest.mark.parametrize("given", NOT_YET_GENERATE)
def test_what_generate_cannot_do_is_refused(given: dict[str, Any]) -> None:
    assert message_of(generate, **given) == f"`{next(iter(given))}` is not supported yet"


@pytest.mark.parametrize("given", NOT_YET_OPENAI)
def test_what_openai_cannot_do_is_refused(given: dict[str, Any]) -> None:
    assert message_of(openai, **given) == f"`{next(iter(given))}` is not supported yet"


def test_neutral_values_are_taken() -> None:
    neutral: dict[str, Any] = {
        "best_of": 1,
        "repetition_penalty": 1.0,
        "frequency_penalty": 0,
        "typical_p": 1.0,
        "watermark": False,
        "grammar": None,
        "top_n_tokens": 0,
        "adapter_id": None,
        "decoder_input_details": True,
        "stop": [],
    }
    assert generate(**neutral) == generate()
    neutral = {
        "n": 1,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "min_p": 0,
        "logprobs": True,
        "top_logprobs": 0,
        "response_format": {"type": "text"},
        "tools": [],
        "tool_choice": "auto",
        "stop": None,
        "echo": False,
    }
    assert openai(temperature=0, **neutral) == openai(temperature=0)
    assert openai(temperature=0, tools=[{"type": "function"}], tool_choice="none", logprobs=0) == openai(temperature=0)


@pytest.mark.parametrize("struct", [GenerateParameters, OpenAIParameters])
def test_null_is_the_same_as_absent(struct: type[msgspec.Struct]) -> None:
    nulls = "{" + ",".join(f'"{name}":null' for name in struct.__struct_fields__) + "}"
    assert msgspec.json.decode(nulls, type=struct) == struct()


def test_stop_forms() -> None:
    assert generate(stop="a").stop == ("a",)
    assert openai(stop=["b", "a", "b"]).stop == ("b", "a")


def test_decoder_input_details_with_a_stream() -> None:
    assert "`decoder_input_details`" in message_of(generate, decoder_input_details=True, stream=True)


def test_options_carry_the_rest() -> None:
    options = generate(max_new_tokens=10**9, truncate=7, ignore_eos=True)
    assert (options.max_new_tokens, options.clamp_new_tokens) == (10**9, True)
    assert (options.truncate, options.ignore_eos) == (7, True)
    options = openai(max_tokens=3, max_completion_tokens=5, ignore_eos=True)
    assert (options.max_new_tokens, options.clamp_new_tokens, options.ignore_eos) == (5, False, True)


def test_empty_inputs() -> None:
    with pytest.raises(ValidationError, match="`inputs` must not be empty"):
        require_inputs("")
