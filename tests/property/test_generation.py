"""Stop strings end a request at the same character and token, whatever its tokens are."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.property.test_stopping import first_to_complete, longest_beginning
from tests.support.outputs import RecordingClient, RecordingOutput
from tests.support.text_tokenizers import byte_level_json, load
from tgi_core.engine.frames import Finish
from tgi_core.requests import FinishReason, Generation, GenerationOptions, IncrementalDetokenizer
from tgi_core.sampling.params import SamplingParams

with tempfile.TemporaryDirectory() as _folder:
    TOKENIZER = load(Path(_folder), byte_level_json())

SPECIAL_ID = 1
token_ids = st.lists(st.integers(1, 499), min_size=1, max_size=25)


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[int], list[str]]:
    """Tokens, and stops cut out of their text or made up."""
    ids = draw(token_ids)
    text = "".join(pieces(ids)) or "x"
    stops = []
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text) - 1))
        cut = text[start : start + draw(st.integers(1, 6))]
        stops.append(cut + draw(st.sampled_from(["", "", "q"])))
    return ids, stops


def pieces(ids: list[int]) -> list[str]:
    """What each token adds to the generated text."""
    detokenizer = IncrementalDetokenizer(TOKENIZER)
    return ["" if token_id == SPECIAL_ID else detokenizer.push(token_id) for token_id in ids]


def options(stops: list[str], include_stop: bool, min_tokens: int = 0) -> GenerationOptions:
    """What the generations here are asked for."""
    return GenerationOptions(
        sampling=SamplingParams(min_tokens=min_tokens), stop=tuple(dict.fromkeys(stops)), include_stop=include_stop
    )


@given(runs(), st.booleans(), st.one_of(st.just(0), st.integers(0, 25)))
def test_a_stop_cuts_text_and_tokens(run: tuple[list[int], list[str]], include_stop: bool, min_tokens: int) -> None:
    ids, stops = run
    output, client = RecordingOutput(), RecordingClient()
    generation = Generation(output, TOKENIZER, options(stops, include_stop, min_tokens))
    generation.submit(client, [2], 100)
    text, hit = "", None
    for count, (token_id, piece) in enumerate(zip(ids, pieces(ids), strict=True), start=1):
        generation.on_token(token_id, -1.0, Finish.NOT)
        skipped = len(text + piece) if count < min_tokens else len(text)
        text += piece
        hit = first_to_complete(text, stops, skipped)
        if hit is not None:
            assert output.text == text[: hit.end if include_stop else hit.start]
            assert output.reason is FinishReason.STOP
            assert client.finished == [(77, count)]
            return
        assert text.startswith(output.text)
        if include_stop or longest_beginning(text, stops) == 0:
            assert output.text == text
            assert [token.token_id for token in output.tokens] == ids[:count]
    assert client.finished == []


@given(runs(), st.booleans())
def test_without_a_hit_every_token_goes_out(run: tuple[list[int], list[str]], include_stop: bool) -> None:
    ids, stops = run
    stops = [stop + "never" for stop in stops]
    output = RecordingOutput()
    generation = Generation(output, TOKENIZER, options(stops, include_stop))
    for position, token_id in enumerate(ids):
        generation.on_token(token_id, -1.0, Finish.LENGTH if position == len(ids) - 1 else Finish.NOT)
    assert [token.token_id for token in output.tokens] == ids
    assert output.text == "".join(pieces(ids))
    assert output.reason is FinishReason.LENGTH
