from __future__ import annotations

import pytest

from tgi_core.errors import ValidationError
from tgi_core.requests import EncoderLimits, GenerationOptions, RequestLimits, fit_prompt
from tgi_core.sampling.params import SamplingParams

BOS = 1


def limits_of(max_input_tokens: int, max_total_tokens: int) -> RequestLimits:
    return RequestLimits(max_input_tokens=max_input_tokens, max_total_tokens=max_total_tokens, vocab_size=500)


LIMITS = limits_of(2999, 3000)


def options(**values: object) -> GenerationOptions:
    return GenerationOptions(sampling=SamplingParams(), **values)  # type: ignore[arg-type]


def test_new_tokens_default_to_the_rest_of_the_context() -> None:
    assert fit_prompt([BOS, 5, 6], options(), LIMITS) == ([BOS, 5, 6], 2997)


def test_an_explicit_number_is_kept() -> None:
    assert fit_prompt([5], options(max_new_tokens=2999), LIMITS)[1] == 2999


def test_what_does_not_fit_names_all_numbers() -> None:
    with pytest.raises(ValidationError) as caught:
        fit_prompt([5] * 2500, options(max_new_tokens=501), LIMITS, (), "prompt")
    assert str(caught.value) == (
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 3000. "
        "Given: 2500 `inputs` tokens and 501 `max_new_tokens`. Shorten `prompt`, ask for fewer tokens, or start the "
        "server with --max-total-tokens 3001 or more"
    )
    assert caught.value.param == "prompt"


def test_a_huge_number_means_to_the_end() -> None:
    huge = options(max_new_tokens=10**9)
    assert fit_prompt([5] * (3000 - 1024), huge, LIMITS)[1] == 1024
    with pytest.raises(ValidationError, match="1977 `inputs` tokens and 1000000000 `max_new_tokens`"):
        fit_prompt([5] * (3000 - 1023), huge, LIMITS)


def test_a_prompt_over_the_input_limit() -> None:
    limits = limits_of(10, 3000)
    assert fit_prompt([5] * 10, options(), limits)[1] == 2990
    with pytest.raises(
        ValidationError, match=r"`inputs` must have less than 10 tokens\. Given: 11\. .* --max-input-tokens 11 or more"
    ):
        fit_prompt([5] * 11, options(), limits)


def test_a_prompt_that_fills_the_context_leaves_no_room() -> None:
    limits = limits_of(3000, 3000)
    with pytest.raises(
        ValidationError, match=r"less than 2999 tokens\. Given: 3000\. .* with --max-total-tokens 3001 or"
    ):
        fit_prompt([5] * 3000, options(), limits)


def test_an_empty_prompt() -> None:
    with pytest.raises(ValidationError, match="at least one token"):
        fit_prompt([], options(), LIMITS)


@pytest.mark.parametrize(
    ("limit", "kept"), [(9, [BOS, 5, 6, 7, 8]), (5, [BOS, 5, 6, 7, 8]), (3, [BOS, 7, 8]), (1, [BOS])]
)
def test_truncation_keeps_bos_and_the_tail(limit: int, kept: list[int]) -> None:
    prompt, max_new_tokens = fit_prompt([BOS, 5, 6, 7, 8], options(truncate=limit), LIMITS, (BOS,))
    assert prompt == kept
    assert max_new_tokens == 3000 - len(kept)


def test_truncation_without_bos_keeps_the_tail() -> None:
    assert fit_prompt([5, 6, 7, 8], options(truncate=2), LIMITS)[0] == [7, 8]
    # A chat prompt is encoded without added tokens, whatever the tokenizer would add.
    assert fit_prompt([5, 6, 7, 8], options(truncate=2), LIMITS, (BOS,))[0] == [7, 8]


def test_the_input_limit_counts_after_truncation() -> None:
    limits = limits_of(4, 10)
    assert len(fit_prompt([5] * 100, options(truncate=4), limits)[0]) == 4


def test_the_seed_is_told_only_when_it_matters() -> None:
    assert GenerationOptions(sampling=SamplingParams(seed=7)).seed is None
    assert GenerationOptions(sampling=SamplingParams(do_sample=True, seed=7)).seed == 7


class TestChoices:
    def test_one_generation_has_the_options_themselves(self) -> None:
        given = options(stop=("a",))
        assert given.choices() == [given]

    def test_choices_share_a_seed_and_differ_by_their_index(self) -> None:
        given = GenerationOptions(sampling=SamplingParams(do_sample=True, seed=7, top_k=3), best_of=3, n=2, stop=("a",))
        samplings = [choice.sampling for choice in given.choices()]
        assert samplings == [SamplingParams(do_sample=True, seed=7, top_k=3, choice=index) for index in range(3)]
        assert {choice.stop for choice in given.choices()} == {("a",)}

    def test_tgis_sequences_draw_a_seed_each(self) -> None:
        given = GenerationOptions(sampling=SamplingParams(do_sample=True, seed=7), best_of=3, own_seeds=True)
        choices = given.choices()
        assert len({choice.seed for choice in choices} | {7}) == 4
        assert {choice.sampling.choice for choice in choices} == {0}


class TestEncoder:
    """An encoder reads the prompt, which then takes no room from the output."""

    LIMITS = RequestLimits(
        max_input_tokens=10, max_total_tokens=100, vocab_size=500, encoder=EncoderLimits((0, 7), max_step_tokens=12)
    )

    @pytest.mark.parametrize(("wanted", "given"), [(None, 98), (98, 98), (5, 5)])
    def test_room_is_the_decoders(self, wanted: int | None, given: int) -> None:
        assert fit_prompt([5] * 10, options(max_new_tokens=wanted), self.LIMITS) == ([5] * 10, given)

    def test_more_new_tokens_than_there_is_room(self) -> None:
        with pytest.raises(
            ValidationError, match=r"`max_new_tokens` must be <= 98\. Given: 99\. .*-tokens 101 or more"
        ):
            fit_prompt([5], options(max_new_tokens=99), self.LIMITS)

    def test_a_prompt_over_the_input_limit(self) -> None:
        with pytest.raises(ValidationError, match=r"at most 10 tokens\. Given: 11\. .* --max-input-tokens 11 or more"):
            fit_prompt([5] * 11, options(), self.LIMITS)

    def test_a_prompt_that_no_step_holds(self) -> None:
        with pytest.raises(ValidationError, match="--max-input-tokens 13 and --max-batch-prefill-tokens 13"):
            fit_prompt([5] * 13, options(), self.LIMITS)
