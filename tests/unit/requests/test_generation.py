from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.outputs import RecordingClient, RecordingOutput
from tests.support.text_tokenizers import encode
from tgi_core.engine.frames import Finish
from tgi_core.errors import GenerationError
from tgi_core.requests import Alternatives, FinishReason, Generation, GenerationOptions, TextTokenizer
from tgi_core.sampling.grammar import Grammar, GrammarKind
from tgi_core.sampling.params import SamplingParams

EOS_ID = 1


class Run:
    """A generation between a recording output and a recording client."""

    def __init__(self, tokenizer: TextTokenizer, stops: Sequence[str] = (), **options: Any) -> None:
        self.tokenizer = tokenizer
        self.output = RecordingOutput()
        self.client = RecordingClient()
        given = {"sampling": SamplingParams(), "stop": tuple(stops)} | options
        self.generation = Generation(self.output, tokenizer, GenerationOptions(**given))
        self.generation.submit(self.client, [5, 6], 9)

    def feed(self, *texts: str, finish: Finish = Finish.NOT) -> None:
        """Push the tokens of the texts; ``finish`` comes with the last one."""
        ids = [token_id for text in texts for token_id in encode(self.tokenizer, text)]
        for position, token_id in enumerate(ids):
            is_last = position == len(ids) - 1
            self.generation.on_token(token_id, -0.5, finish if is_last else Finish.NOT)

    @property
    def texts(self) -> list[str]:
        """Texts of the tokens that went out."""
        return [token.text for token in self.output.tokens]


@pytest.fixture
def letters(byte_level: TextTokenizer) -> TextTokenizer:
    """A tokenizer with a token for each of the letters used here; "fox" is one token."""
    assert len(encode(byte_level, "Q")) == 1
    return byte_level


def test_submit_and_cancel(letters: TextTokenizer) -> None:
    grammar = Grammar(GrammarKind.REGEX, "a*")
    more = {"ignore_eos": True, "grammar": grammar, "prompt_logprobs": True, "stop_token_ids": (3, 4)}
    run = Run(letters, **more)
    assert run.client.submitted == [([5, 6], 9, SamplingParams(), run.generation, more)]
    run.generation.cancel()
    assert run.client.cancelled == [77]


def test_tokens_go_out_as_they_come(letters: TextTokenizer) -> None:
    run = Run(letters)
    run.feed("Q", "X")
    assert [tuple(token) for token in run.output.tokens] == [
        (encode(letters, "Q")[0], "Q", -0.5, False, None),
        (encode(letters, "X")[0], "X", -0.5, False, None),
    ]
    run.feed("Z", finish=Finish.LENGTH)
    assert run.output.reason is FinishReason.LENGTH
    assert run.generation.num_tokens == 3
    assert run.client.finished == []


def test_eos_is_special_and_literal(letters: TextTokenizer) -> None:
    run = Run(letters)
    run.feed("Q")
    run.generation.on_token(EOS_ID, -0.1, Finish.EOS)
    assert run.output.tokens[-1] == (EOS_ID, "</s>", -0.1, True, None)
    assert run.output.text == "Q"
    assert run.output.reason is FinishReason.EOS
    assert run.generation.num_tokens == 2


def test_an_eos_that_the_tokenizer_does_not_mark_is_special_too(letters: TextTokenizer) -> None:
    run = Run(letters, ["Z"])
    token_id = encode(letters, "Z")[0]
    run.generation.on_token(token_id, -0.1, Finish.EOS)
    assert run.output.tokens == [(token_id, "Z", -0.1, True, None)]
    assert run.output.reason is FinishReason.EOS


def test_a_special_token_inside_a_character_leaves_the_text_alone(letters: TextTokenizer) -> None:
    run = Run(letters)
    first, *rest = encode(letters, "🤖")
    run.generation.on_token(first, 0.0, Finish.NOT)
    run.generation.on_token(EOS_ID, 0.0, Finish.NOT)
    for token_id in rest:
        run.generation.on_token(token_id, 0.0, Finish.NOT)
    assert run.output.text == "🤖"


class TestTgiStops:
    def test_the_completing_token_is_cut_behind_the_stop(self, letters: TextTokenizer) -> None:
        run = Run(letters, ["Qf"], include_stop=True)
        run.feed("XQ", "fox")
        assert run.texts == ["X", "Q", "f"]
        assert run.output.reason is FinishReason.STOP
        assert run.client.finished == [(77, 3)]

    def test_nothing_is_held_back(self, letters: TextTokenizer) -> None:
        run = Run(letters, ["QXZ"], include_stop=True)
        run.feed("QX")
        assert run.texts == ["Q", "X"]

    def test_length_comes_before_a_stop(self, letters: TextTokenizer) -> None:
        run = Run(letters, ["Z"], include_stop=True, length_first=True)
        run.feed("QZ", finish=Finish.LENGTH)
        assert run.output.reason is FinishReason.LENGTH
        assert run.output.text == "QZ"
        assert run.client.finished == []


class TestOpenAIStops:
    def test_tokens_inside_the_stop_do_not_go_out(self, letters: TextTokenizer) -> None:
        run = Run(letters, ["QXZ"])
        run.feed("ZQX")
        assert run.texts == ["Z"]
        run.feed("Z")
        assert run.texts == ["Z"]
        assert run.output.reason is FinishReason.STOP
        assert run.generation.num_tokens == 4
        assert run.client.finished == [(77, 4)]

    def test_a_token_partly_in_the_stop_keeps_its_beginning(self, letters: TextTokenizer) -> None:
        run = Run(letters, ["xQ"])
        run.feed("fox")
        assert run.texts == []
        run.feed("Q")
        assert run.texts == ["fo"]

    def test_held_tokens_go_out_when_they_cannot_match_any_more(self, letters: TextTokenizer) -> None:
        run = Run(letters, ["QXZ"])
        run.feed("QX")
        assert run.texts == []
        run.feed("Q")
        assert run.texts == ["Q", "X"]
        run.feed("fox")
        assert run.texts == ["Q", "X", "Q", "fox"]

    def test_held_tokens_go_out_at_the_end_in_order(self, letters: TextTokenizer) -> None:
        run = Run(letters, ["QXZ"])
        run.feed("QX")
        run.generation.on_token(EOS_ID, 0.0, Finish.EOS)
        assert run.texts == ["Q", "X", "</s>"]
        assert run.output.reason is FinishReason.EOS

    def test_a_special_token_in_front_of_the_stop_is_not_cut(self, letters: TextTokenizer) -> None:
        run = Run(letters, ["xQ"])
        run.generation.on_token(encode(letters, "x")[0], 0.0, Finish.NOT)
        run.generation.on_token(EOS_ID, 0.0, Finish.NOT)
        run.feed("xQ")
        assert run.texts == ["x", "</s>"]

    def test_a_stop_comes_before_length(self, letters: TextTokenizer) -> None:
        run = Run(letters, ["Z"])
        run.feed("QZ", finish=Finish.LENGTH)
        assert run.output.reason is FinishReason.STOP
        assert run.output.text == "Q"
        assert run.client.finished == []

    def test_the_stop_may_be_kept(self, letters: TextTokenizer) -> None:
        run = Run(letters, ["Z"], include_stop=True)
        run.feed("QZ", finish=Finish.LENGTH)
        assert run.output.reason is FinishReason.STOP
        assert run.output.text == "QZ"


class TestMinTokens:
    @pytest.mark.parametrize(("include_stop", "texts"), [(True, ["Q", "Z", "Q", "Z"]), (False, ["Q", "Z", "Q"])])
    def test_a_stop_counts_from_the_least_number_of_tokens_on(
        self, letters: TextTokenizer, include_stop: bool, texts: list[str]
    ) -> None:
        run = Run(letters, ["Z"], include_stop=include_stop, sampling=SamplingParams(min_tokens=3))
        run.feed("QZQ")
        assert run.output.reason is None
        run.feed("Z")
        assert run.texts == texts
        assert run.client.finished == [(77, 4)]

    def test_a_stop_may_begin_before(self, letters: TextTokenizer) -> None:
        run = Run(letters, ["QX"], sampling=SamplingParams(min_tokens=3))
        run.feed("QXQ")
        assert run.texts == ["Q", "X"]
        run.feed("X")
        assert run.texts == ["Q", "X"]
        assert run.output.reason is FinishReason.STOP


class TestLogprobs:
    TOPS = ([9, 8], [-0.1, -0.2]), ([7, 6], [-0.3, -0.4]), ([5, 4], [-0.5, -0.6])

    def feed(self, run: Run, text: str) -> None:
        for token_id, tops in zip(encode(run.tokenizer, text), self.TOPS, strict=True):
            run.generation.on_top_tokens(*tops)
            run.generation.on_token(token_id, -0.5, Finish.NOT)

    @pytest.mark.parametrize("stops", [[], ["never"], ["QX"]])
    @pytest.mark.parametrize("include_stop", [False, True])
    def test_alternatives_stay_with_their_token(
        self, letters: TextTokenizer, stops: list[str], include_stop: bool
    ) -> None:
        run = Run(letters, stops, include_stop=include_stop)
        self.feed(run, "ZQZ")
        assert [token.alternatives for token in run.output.tokens] == [Alternatives(*tops) for tops in self.TOPS]

    def test_a_cut_token_keeps_them(self, letters: TextTokenizer) -> None:
        run = Run(letters, ["xQ"])
        run.generation.on_top_tokens([3], [-1.0])
        run.feed("fox")
        run.generation.on_top_tokens([2], [-2.0])
        run.feed("Q")
        assert [(token.text, token.alternatives) for token in run.output.tokens] == [("fo", ([3], [-1.0]))]

    def test_those_of_the_prompt_are_passed_on(self, letters: TextTokenizer) -> None:
        run = Run(letters)
        run.generation.on_prompt_logprobs([-0.25])
        assert run.output.prompt_logprobs == [-0.25]


def test_an_error_ends_the_request(letters: TextTokenizer) -> None:
    run = Run(letters)
    error = GenerationError("out of memory")
    run.generation.on_error(error)
    assert run.output.error is error
    assert run.generation.ended_at >= run.generation.submitted_at


def test_times_are_recorded_in_order(letters: TextTokenizer) -> None:
    run = Run(letters)
    assert run.generation.first_token_at == run.generation.ended_at == 0.0
    run.generation.on_admitted(0.25, 16)
    run.feed("Q")
    first = run.generation.first_token_at
    run.feed("Q", finish=Finish.LENGTH)
    assert (run.generation.queue_seconds, run.generation.cached_tokens) == (0.25, 16)
    assert 0.0 < run.generation.submitted_at <= first == run.generation.first_token_at <= run.generation.ended_at


def test_finish_reasons_in_both_vocabularies() -> None:
    assert [(reason.tgi, reason.openai) for reason in FinishReason] == [
        ("length", "length"),
        ("eos_token", "stop"),
        ("stop_sequence", "stop"),
    ]


def test_logits_that_are_not_numbers_end_the_request_with_an_error(letters: TextTokenizer) -> None:
    run = Run(letters)
    run.feed("Q")
    run.generation.on_token(5, float("nan"), Finish.NOT)
    assert "not numbers" in str(run.output.error)
    assert run.output.text == "Q"
