"""Texts that an output must not have, as the sequences of tokens they may be generated as."""

from __future__ import annotations

from collections.abc import Sequence

from tgi_core.errors import ValidationError
from tgi_core.requests.tokenizer import TextTokenizer
from tgi_core.sampling.params import MAX_BAD_WORD_TOKENS


async def encode_bad_words(
    words: Sequence[str], tokenizer: TextTokenizer, vocab_size: int
) -> tuple[tuple[int, ...], ...]:
    """The tokens of each word at the start of a text and behind a space, as vLLM takes them.

    Raises:
        ValidationError: a word has too many tokens, is not Unicode, or has tokens that the model does not know.
    """
    sequences: dict[tuple[int, ...], None] = {}
    for word in words:
        for text in (word.lstrip(), " " + word.lstrip()):
            ids = tuple(await tokenizer.encode(text, False))
            if len(ids) > MAX_BAD_WORD_TOKENS:
                raise ValidationError(
                    f"`bad_words` must hold texts of at most {MAX_BAD_WORD_TOKENS} tokens. Given: {word[:40]!r}"
                )
            if not ids or max(ids) >= vocab_size:
                raise ValidationError(f"`bad_words` must hold texts that the model can write. Given: {word[:40]!r}")
            sequences[ids] = None
    return tuple(sequences)
