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
from tgi_core.sampling.grammar import Grammar, GrammarKind
from tgi_core.sampling.params import SamplingParams, Tier

LIMITS = RequestLimits(
    max_input_tokens=100,
    max_total_tokens=128,
    vocab_size=500,
    watermark_gamma=0.25,
    watermark_delta=3.0,
    extra_parameters=frozenset({"strength"}),
)
NEUTRAL = SamplingParams(watermark_gamma=0.25)


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
        assert generate().sampling == NEUTRAL

    @pytest.mark.parametrize(
        "given",
        [{"temperature": 0.99}, {"top_k": 5}, {"top_p": 0.9}, {"typical_p": 0.9}, {"min_p": 0.1}, {"do_sample": True}],
    )
    def test_what_makes_generate_sample(self, given: dict[str, Any]) -> None:
        assert generate(**given).sampling.do_sample

    @pytest.mark.parametrize(
        "given",
        [
            {"temperature": 1.0},
            {"top_p": 1.0},
            {"top_k": 0},
            {"top_k": -1},
            {"typical_p": 1.0},
            {"min_p": 0},
            {"seed": 3},
        ],
    )
    def test_what_leaves_generate_greedy(self, given: dict[str, Any]) -> None:
        options = generate(**given)
        assert options.sampling == NEUTRAL
        assert options.seed is None

    def test_openai_samples_unless_the_temperature_is_zero(self) -> None:
        assert openai().sampling.do_sample
        assert openai(temperature=1.5).sampling.temperature == 1.5
        cuts = {"top_p": 0.5, "top_k": 3, "typical_p": 0.5, "min_p": 0.5}
        assert openai(temperature=0, seed=4, **cuts).sampling == SamplingParams()

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
        (
            "top_n_tokens",
            6,
            "must be >= 0 and <= 5. Given: 6. To allow it, start the server with --max-top-n-tokens 6 or",
        ),
        ("truncate", 0, "must be strictly positive and at most 100. Given: 0"),
        ("truncate", 101, "at most 100. Given: 101. To allow it, start the server with --max-input-tokens 101 or more"),
        ("best_of", 3, "must be > 0 and <= 2. Given: 3. To allow it, start the server with --max-best-of 3 or more"),
        (
            "stop",
            ["a", "b", "c", "d", "e"],
            "at most 4 strings. Given: 5. To allow it, start the server with --max-stop-sequences 5 or",
        ),
        ("stop", ["a", ""], "empty string"),
        ("min_p", 1.5, "must be >= 0.0 and <= 1.0"),
        ("min_tokens", -1, "must be >= 0 and <= 128"),
        ("min_new_tokens", 129, "must be >= 0 and <= 128"),
        ("logit_bias", {"500": 1.0}, "token ids below 500. Given: '500'"),
        ("logits_rules", {"weakness": 1.0}, "offer: `strength`. Given: 'weakness'"),
        ("logits_rules", {"strength": math.inf}, "finite 32-bit float"),
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
        ("n", 129, "must be <= 128. Given: 129"),
        ("best_of", 129, "must be <= 128. Given: 129"),
        ("top_logprobs", 21, "must be >= 0 and <= 20"),
        ("top_logprobs", 2, "needs `logprobs`"),
        ("logprobs", 21, "must be >= 0 and <= 20"),
        ("typical_p", 0, "must be > 0.0 and <= 1.0"),
        ("min_tokens", 129, "must be >= 0 and <= 128"),
        ("logit_bias", {"5": 1e39}, "finite 32-bit floats"),
        ("logit_bias", {"5": math.nan}, "finite 32-bit floats"),
        ("logit_bias", {"5": 100.5}, "values from -100.0 to 100.0. Given: 100.5"),
        ("logit_bias", {"-3": 1}, "token ids below 500. Given: '-3'"),
        ("logit_bias", {"1_0": 1}, "token ids below 500. Given: '1_0'"),
        ("logit_bias", {"٣": 1}, "token ids below 500"),
        ("logit_bias", {"9" * 5000: 1}, "token ids below 500. Given: '9999"),
        ("logit_bias", {str(token): 1 for token in range(1025)}, "at most 1024 tokens. Given: 1025"),
        ("logit_bias", [1.0], "must be an object from token ids to biases"),
        ("logits_rules", {"weakness": 1.0}, "offer: `strength`"),
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
        "min_p": 2,
        "logit_bias": {"x": 1},
        "logits_rules": {"x": 1},
        "min_tokens": -1,
        "adapter_id": "x",
        "grammar": {"type": "x"},
    }
    repaired: dict[str, Any] = {"best_of": 2, "inputs": "x", "seed": None}
    fields = list(broken)
    broken["do_sample"] = True
    for field in fields:
        assert f"`{field}" in message_of(generate, **broken)
        broken[field] = repaired.get(field)
        if field == "seed":
            broken["best_of"] = None
    generate(**broken)


class TestBestOf:
    def test_it_needs_sampling(self) -> None:
        assert "needs sampling" in message_of(generate, best_of=2)
        # Sending a warper is enough here, even one that changes nothing.
        assert not generate(best_of=2, temperature=1.0).sampling.do_sample

    def test_it_excludes_a_seed_and_streaming(self) -> None:
        assert "`seed`" in message_of(generate, best_of=2, do_sample=True, seed=1)
        assert "streaming" in message_of(generate, best_of=2, do_sample=True, stream=True)

    def test_zero_and_one_are_one(self) -> None:
        assert generate(best_of=0) == generate(best_of=1) == generate()

    def test_each_sequence_draws_its_own_seed(self) -> None:
        options = generate(best_of=2, do_sample=True)
        assert (options.best_of, options.own_seeds) == (2, True)


class TestChoices:
    def test_n_choices_are_n_generations(self) -> None:
        options = openai(n=3, seed=1)
        assert (options.n, options.best_of, options.own_seeds) == (3, 3, False)
        assert openai(n=3, stream=True).n == 3

    def test_the_best_of_more(self) -> None:
        options = openai(n=2, best_of=5)
        assert (options.n, options.best_of) == (2, 5)
        assert openai(best_of=2).n == 1

    def test_what_does_not_go_together(self) -> None:
        assert "at least `n`" in message_of(openai, n=3, best_of=2)
        assert "streaming" in message_of(openai, best_of=2, stream=True)
        assert openai(n=2, best_of=2, stream=True).best_of == 2


class TestLogprobs:
    def test_generate_reports_those_after_the_rules(self) -> None:
        sampling = generate(top_n_tokens=3).sampling
        assert (sampling.top_n, sampling.raw_logprobs) == (3, False)

    @pytest.mark.parametrize(
        ("given", "top_n", "raw"),
        [
            ({}, 0, False),
            ({"logprobs": False}, 0, False),
            ({"logprobs": False, "top_logprobs": 0}, 0, False),
            ({"logprobs": True}, 0, True),
            ({"logprobs": True, "top_logprobs": 20}, 20, True),
            ({"logprobs": 0}, 0, True),
            ({"logprobs": 20}, 20, True),
        ],
    )
    def test_openai_reports_the_models_own_when_asked(self, given: dict[str, Any], top_n: int, raw: bool) -> None:
        sampling = openai(**given).sampling
        assert (sampling.top_n, sampling.raw_logprobs) == (top_n, raw)

    def test_requests_that_ask_for_none_stay_in_the_cheap_tiers(self) -> None:
        assert openai(temperature=0).sampling.tier is Tier.GREEDY
        assert openai(top_p=0.9, top_k=5).sampling.tier is Tier.SAMPLED
        assert generate().sampling.tier is Tier.GREEDY
        assert openai(temperature=0, logprobs=True).sampling.tier is Tier.GREEDY

    def test_those_of_the_prompt(self) -> None:
        assert generate(decoder_input_details=True).prompt_logprobs
        assert not generate(details=True).prompt_logprobs
        assert openai(echo=True, logprobs=0).prompt_logprobs
        assert not openai(echo=True).prompt_logprobs
        assert not openai(logprobs=0).prompt_logprobs


class TestRules:
    def test_the_frequency_penalty_is_each_apis_own(self) -> None:
        sampling = generate(frequency_penalty=0.5).sampling
        assert (sampling.relative_frequency_penalty, sampling.frequency_penalty) == (0.5, 0.0)
        sampling = openai(frequency_penalty=0.5, presence_penalty=-2.0).sampling
        assert (sampling.relative_frequency_penalty, sampling.frequency_penalty) == (0.0, 0.5)
        assert sampling.presence_penalty == -2.0

    def test_the_watermark_is_the_servers(self) -> None:
        sampling = generate(watermark=True).sampling
        assert (sampling.watermark_gamma, sampling.watermark_delta) == (0.25, 3.0)
        assert generate(watermark=False).sampling.watermark_delta == 0.0

    @pytest.mark.parametrize("validate", [generate, openai])
    def test_what_both_take(self, validate: Any) -> None:
        rules = {"strength": 2}
        given = {"typical_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.5, "min_tokens": 4, "logits_rules": rules}
        sampling = validate(temperature=0.5, logit_bias={"7": -100, "008": 0.5, "9": 0}, **given).sampling
        assert (sampling.typical_p, sampling.min_p, sampling.repetition_penalty) == (0.9, 0.1, 1.5)
        assert (sampling.min_tokens, sampling.extra) == (4, {"strength": 2.0})
        assert sampling.logit_bias == {7: -100, 8: 0.5}

    def test_min_new_tokens_wins_over_its_other_name(self) -> None:
        assert generate(min_new_tokens=5, min_tokens=4).sampling.min_tokens == 5
        assert generate(min_new_tokens=0, min_tokens=4).sampling.min_tokens == 0

    def test_the_least_number_of_tokens_is_not_above_the_most(self) -> None:
        assert "`min_new_tokens` must be >= 0 and <= 3" in message_of(generate, min_new_tokens=4, max_new_tokens=3)
        assert "`min_tokens` must be >= 0 and <= 3" in message_of(openai, min_tokens=4, max_tokens=3)
        assert openai(min_tokens=4, max_tokens=3, max_completion_tokens=4).sampling.min_tokens == 4

    def test_without_rules_of_plugins_none_is_known(self) -> None:
        limits = msgspec.structs.replace(LIMITS, extra_parameters=frozenset())
        with pytest.raises(ValidationError, match="offer: none"):
            validate_openai(OpenAIParameters(logits_rules={"strength": 1.0}), limits)


class TestGrammar:
    YES = Grammar(GrammarKind.REGEX, "yes")

    @pytest.mark.parametrize(
        ("validate", "given"),
        [
            (generate, {"grammar": {"type": "regex", "value": "yes"}}),
            (openai, {"response_format": {"type": "regex", "value": "yes"}}),
            (openai, {"structured_outputs": {"regex": "yes"}}),
            (openai, {"guided_regex": "yes"}),
        ],
    )
    def test_each_field_is_read(self, validate: Any, given: dict[str, Any]) -> None:
        assert validate(**given).grammar == self.YES

    @pytest.mark.parametrize(
        ("given", "kind"),
        [
            ({"guided_json": {"type": "object"}}, GrammarKind.JSON_SCHEMA),
            ({"guided_choice": ["a", "b"]}, GrammarKind.CHOICE),
            ({"guided_grammar": "start: A"}, GrammarKind.EBNF),
            ({"response_format": {"type": "json_object"}}, GrammarKind.JSON_SCHEMA),
        ],
    )
    def test_other_kinds(self, given: dict[str, Any], kind: GrammarKind) -> None:
        grammar = openai(**given).grammar
        assert grammar is not None
        assert grammar.kind is kind

    def test_only_one_of_them(self) -> None:
        given = {"guided_regex": "a", "response_format": {"type": "json_object"}}
        assert message_of(openai, **given) == (
            "Only one constraint can be given. Given: `response_format` and `guided_regex`"
        )

    def test_a_server_may_allow_none(self) -> None:
        limits = msgspec.structs.replace(LIMITS, grammar_obstacle="it was started with --disable-grammar-support")
        with pytest.raises(ValidationError, match="--disable-grammar-support"):
            validate_openai(OpenAIParameters(guided_regex="a"), limits)
        assert validate_openai(OpenAIParameters(response_format={"type": "text"}), limits).grammar is None


def test_the_stop_may_be_kept_on_openais_routes() -> None:
    assert openai(include_stop_str_in_output=True).include_stop
    assert not openai().include_stop
    assert not openai(include_stop_str_in_output=True).length_first


def test_generate_keeps_the_stop_and_looks_at_the_length_first() -> None:
    assert generate().include_stop
    assert generate().length_first


def test_what_this_version_cannot_do_is_refused() -> None:
    assert message_of(generate, adapter_id="a") == "`adapter_id` is not supported yet"


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
        "min_p": 0,
        "min_tokens": 0,
        "logit_bias": [],
        "logits_rules": {},
        "decoder_input_details": False,
        "stop": [],
    }
    assert generate(**neutral) == generate()
    neutral = {
        "n": 1,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "min_p": 0,
        "logprobs": False,
        "top_logprobs": 0,
        "response_format": {"type": "text"},
        "tools": [],
        "tool_choice": "auto",
        "stop": None,
        "echo": False,
    }
    assert openai(temperature=0, **neutral) == openai(temperature=0)
    assert openai(temperature=0, tools=[{"type": "function"}], tool_choice="none") == openai(temperature=0)


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
    assert options.max_new_tokens == 10**9
    assert (options.truncate, options.ignore_eos) == (7, True)
    options = openai(max_tokens=3, max_completion_tokens=5, ignore_eos=True)
    assert (options.max_new_tokens, options.ignore_eos) == (5, True)


def test_empty_inputs() -> None:
    with pytest.raises(ValidationError, match="`inputs` must not be empty"):
        require_inputs("")
