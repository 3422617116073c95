"""The tokenizer of the served model, used off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Protocol

import msgspec
from tokenizers import Tokenizer

from tgi_core.errors import ExitCode, StartupError, ValidationError

REPLACEMENT = "\ufffd"
"""What a decoder shows for bytes that are not UTF-8."""


class TokenSpan(msgspec.Struct, frozen=True):
    """One token of an input text: ``text`` is the slice of its UTF-8 bytes from ``start`` to ``stop``."""

    id: int
    text: str
    start: int
    stop: int


class TokenCodec(Protocol):
    """What a ``TextTokenizer`` runs on.

    Attributes:
        special_tokens: ids of the tokens that are special, by their literal texts.
    """

    @property
    def special_tokens(self) -> Mapping[str, int]: ...

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Ids of ``text``. Runs on a thread."""

    def spans(self, text: str, add_special_tokens: bool) -> list[TokenSpan]:
        """Tokens of ``text`` with byte offsets. Runs on a thread."""

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        """Text of ``ids``: U+FFFD for bytes that are not UTF-8, one to three for an unfinished character at the end."""


class TextTokenizer:
    """Text to ids and back, on a codec that all threads share and nobody changes.

    Attributes:
        codec: what it runs on.
        special_ids: ids of the tokens that the tokenizer marks as special.
        special_token_ids: the same by the tokens' literal texts.
        prefix_ids: ids that encoding with special tokens puts in front of a text (BOS).
        whole_texts: what tokens add to a text before them, by id, of those seen so far that end with a whole character.
    """

    def __init__(self, tokenizer_file: Path, *, workers: int = 2) -> None:
        """Load a ``tokenizer.json``; ``workers`` threads encode.

        Raises:
            StartupError: the file is missing or not a tokenizer.
        """
        self._use(FastCodec(tokenizer_file), workers)

    @classmethod
    def of_codec(cls, codec: TokenCodec, *, workers: int = 1) -> TextTokenizer:
        """A tokenizer of any kind; ``workers`` threads encode."""
        tokenizer = cls.__new__(cls)
        tokenizer._use(codec, workers)
        return tokenizer

    def _use(self, codec: TokenCodec, workers: int) -> None:
        self.codec = codec
        self._pool = ThreadPoolExecutor(max(1, workers), thread_name_prefix="tokenize")
        self.special_token_ids = dict(codec.special_tokens)
        self._literals = {token_id: text for text, token_id in self.special_token_ids.items()}
        self.special_ids = frozenset(self._literals)
        self._anchor = codec.encode("a", False)
        self._anchor_length = len(self._decode(self._anchor))
        self.prefix_ids = self._find_prefix()
        self.whole_texts: dict[int, str] = {}

    async def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Ids of ``text``.

        Raises:
            ValidationError: the text holds half of a surrogate pair.
        """
        check_unicode(text)
        return await asyncio.get_running_loop().run_in_executor(self._pool, self.codec.encode, text, add_special_tokens)

    async def encode_with_offsets(self, text: str, add_special_tokens: bool) -> list[TokenSpan]:
        """Tokens of ``text`` with byte offsets; added special tokens have text "" and offsets 0, 0.

        Raises:
            ValidationError: the text holds half of a surrogate pair.
        """
        check_unicode(text)
        return await asyncio.get_running_loop().run_in_executor(self._pool, self.codec.spans, text, add_special_tokens)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        """Text of ``ids``; bytes that are not UTF-8 become U+FFFD."""
        return self.codec.decode(list(ids), skip_special_tokens)

    def decode_continuation(self, ids: Sequence[int]) -> str:
        """Text that ``ids`` add to a text before them: a leading space is kept, special tokens are literal."""
        # Decoders treat only the first token of a sequence differently, so any token in front stands for any text.
        text = self._decode([*self._anchor, *ids])[self._anchor_length :]
        if len(ids) == 1 and not text.endswith(REPLACEMENT):
            self.whole_texts[ids[0]] = text
        return text

    def decode_beginning(self, ids: Sequence[int]) -> str:
        """Text of ``ids`` with nothing before them; special tokens are literal."""
        return self._decode(list(ids))

    def token_text(self, token_id: int) -> str:
        """Text of one token by itself; a special token's literal text, "" for an id that is none."""
        text = self._literals.get(token_id)
        if text is None:
            text = self.whole_texts.get(token_id)
        return self.decode_continuation((token_id,)) if text is None else text

    def close(self) -> None:
        """Stop the threads; texts being encoded are given up."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _decode(self, ids: list[int]) -> str:
        return self.codec.decode(ids, False)

    def _find_prefix(self) -> tuple[int, ...]:
        plain = self._anchor
        full = self.codec.encode("a", True)
        for start in range(len(full) - len(plain) + 1):
            if full[start : start + len(plain)] == plain:
                return tuple(full[:start])
        return ()


class FastCodec:
    """See ``TokenCodec``: a ``tokenizers.Tokenizer``, which is ``tokenizer``."""

    def __init__(self, tokenizer_file: Path) -> None:
        """Load a ``tokenizer.json``.

        Raises:
            StartupError: the file is missing or not a tokenizer.
        """
        try:
            tokenizer = Tokenizer.from_file(str(tokenizer_file))
        except Exception as error:  # the library raises nothing more specific
            raise StartupError(
                f"`{tokenizer_file}` cannot be read as a tokenizer: {error}.",
                "The model folder needs the tokenizer.json of a fast tokenizer.",
                ExitCode.MODEL,
            ) from error
        # A checkpoint may ship settings of its training; they would cut or pad prompts.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self.special_tokens = {token.content: token_id for token_id, token in added.items() if token.special}

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Ids of ``text``."""
        # Of the encoding calls only the batch ones release the interpreter lock.
        return self.tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def spans(self, text: str, add_special_tokens: bool) -> list[TokenSpan]:
        """Tokens of ``text`` with byte offsets."""
        encoding = self.tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)[0]
        to_byte = byte_positions(text)
        return [
            TokenSpan(token_id, text[start:stop], to_byte[start], to_byte[stop])
            for token_id, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True)
        ]

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        """Text of ``ids``."""
        return self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)


def byte_positions(text: str) -> Sequence[int]:
    """For each character of ``text``, and its end, how many bytes of UTF-8 stand before it; the wire counts those."""
    if text.isascii():
        return range(len(text) + 1)
    return [0, *accumulate(len(character.encode()) for character in text)]


def check_unicode(text: str) -> None:
    r"""Refuse text that has no UTF-8 form, such as half of a surrogate pair (JSON's ``"\ud800"``).

    Raises:
        ValidationError: the text is such a text.
    """
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValidationError(
            f"`inputs` must be valid Unicode. Given: half of a surrogate pair at character {error.start}"
        ) from None
