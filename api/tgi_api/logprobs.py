"""Log-probabilities in OpenAI's two forms and in TGI's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from tgi_api.collect import Collected
from tgi_api.numbers import float32_or_none
from tgi_api.output import Output, Prompt
from tgi_api.schemas.chat import TokenLogprob, TopLogprob
from tgi_api.schemas.completions import CompletionLogprobs
from tgi_api.schemas.generate import PrefillToken, Token
from tgi_core.requests import Alternatives, IncrementalDetokenizer, TextTokenizer


def chat_logprob(
    output: Output, token_id: int, text: str, logprob: float, alternatives: Alternatives | None
) -> TokenLogprob:
    """The entry of one generated token."""
    tops = [
        TopLogprob(other_text, value, list(other_text.encode()))
        for _, other_text, value in _alternatives(output, token_id, text, alternatives)
    ]
    return TokenLogprob(text, float32_or_none(logprob), list(text.encode()), tops)


def completion_tops(
    output: Output, token_id: int, text: str, logprob: float, alternatives: Alternatives | None
) -> dict[str, float | None] | None:
    """The alternatives of one generated token by text, itself always among them; None when not asked for."""
    if alternatives is None:
        return None
    tops: dict[str, float | None] = {}
    for _, other_text, value in _alternatives(output, token_id, text, alternatives):
        # Tokens inside a character may have the same text; the most likely one counts.
        tops.setdefault(other_text, value)
    tops.setdefault(text, float32_or_none(logprob))
    return tops


def token_logprobs(
    text: str, logprob: float, tops: dict[str, float | None] | None, text_offset: int
) -> CompletionLogprobs:
    """The columns of one generated token; ``text_offset`` counts characters of the choice's text."""
    return CompletionLogprobs([text], [float32_or_none(logprob)], None if tops is None else [tops], [text_offset])


def output_logprobs(output: Collected, text_offset: int) -> CompletionLogprobs:
    """The columns of a whole output, which begins ``text_offset`` characters into the choice's text."""
    lengths = [0 if special else len(text) for text, special in zip(output.texts, output.specials, strict=True)]
    tops = None
    if output.prompt.options.sampling.top_n:
        columns = zip(output.token_ids, output.texts, output.logprobs, output.alternatives, strict=True)
        tops = [completion_tops(output, *column) for column in columns]
    offsets = list(accumulate(lengths, initial=text_offset))[:-1]
    return CompletionLogprobs(list(output.texts), list(map(float32_or_none, output.logprobs)), tops, offsets)


def prompt_logprobs(prompt: Prompt, logprobs: Sequence[float], tokenizer: TextTokenizer) -> CompletionLogprobs:
    """The columns of an echoed prompt. Its tokens have no alternatives and the first one no log-probability."""
    texts = _token_texts(prompt.token_ids, tokenizer)
    specials = [token_id in tokenizer.special_ids for token_id in prompt.token_ids]
    visible = ["" if special else text for text, special in zip(texts, specials, strict=True)]
    if "".join(visible) == " " + prompt.text:
        # Some tokenizers put a space in front of a text.
        first = next(index for index, text in enumerate(visible) if text)
        texts[first] = visible[first] = texts[first][1:]
    tops: list[dict[str, float | None] | None] | None = None
    if prompt.options.sampling.top_n:
        tops = [None] * len(texts)
    offsets = list(accumulate(map(len, visible), initial=0))[:-1]
    return CompletionLogprobs(texts, _with_first(logprobs), tops, offsets)


def join(first: CompletionLogprobs, second: CompletionLogprobs) -> CompletionLogprobs:
    """The columns of tokens that follow each other."""
    tops = None
    if first.top_logprobs is not None and second.top_logprobs is not None:
        tops = [*first.top_logprobs, *second.top_logprobs]
    return CompletionLogprobs(
        [*first.tokens, *second.tokens],
        [*first.token_logprobs, *second.token_logprobs],
        tops,
        [*first.text_offset, *second.text_offset],
    )


def prefill_tokens(output: Collected) -> list[PrefillToken]:
    """The tokens of the prompt, if their log-probabilities were asked for; as in TGI those that the decoder reads."""
    prompt = output.prompt
    if not prompt.options.prompt_logprobs:
        return []
    token_ids = prompt.decoder_prompt or prompt.token_ids
    texts = _token_texts(token_ids, output.tokenizer)
    columns = zip(token_ids, texts, _with_first(output.prompt_logprobs), strict=True)
    return [PrefillToken(*column) for column in columns]


def top_tokens(output: Output, token_id: int, text: str, alternatives: Alternatives) -> list[Token]:
    """The alternatives of one generated token in TGI's form."""
    special_ids = output.tokenizer.special_ids
    return [
        Token(other, other_text, value, other in special_ids)
        for other, other_text, value in _alternatives(output, token_id, text, alternatives)
    ]


def _alternatives(
    output: Output, token_id: int, text: str, alternatives: Alternatives | None
) -> list[tuple[int, str, float | None]]:
    """Id, text and log-probability of each; the chosen token has the text that the reply gives it."""
    if alternatives is None:
        return []
    text_of = output.tokenizer.token_text
    return [
        (other, text if other == token_id else text_of(other), float32_or_none(logprob))
        for other, logprob in zip(alternatives.token_ids, alternatives.logprobs, strict=True)
    ]


def _token_texts(token_ids: Sequence[int], tokenizer: TextTokenizer) -> list[str]:
    """What each token of a prompt adds to its text; special tokens are literal."""
    push = IncrementalDetokenizer(tokenizer).push
    return [
        tokenizer.token_text(token_id) if token_id in tokenizer.special_ids else push(token_id)
        for token_id in token_ids
    ]


def _with_first(logprobs: Sequence[float]) -> list[float | None]:
    return [None, *map(float32_or_none, logprobs)]
