"""Tokenizers that are Python code, with the interface of fast ones."""

from __future__ import annotations

from collections.abc import Mapping

from tgi_core.model_folder import ModelFolder
from tgi_core.requests.tokenizer import REPLACEMENT, TextTokenizer, TokenSpan, byte_positions
from tgi_core.weights.tokenizers.pretrained import PythonTokenizer, open_python

_LONGEST_CHARACTER = 4
"""Tokens that a character may be spread over, one for each byte."""

_SKIPPED = 8
"""Characters that may be lost between two tokens, such as spaces that are read as one."""


def open_tokenizer(folder: ModelFolder, *, workers: int, trust_remote_code: bool) -> TextTokenizer:
    """The tokenizer of a model: its ``tokenizer.json``, or where it has no fast form the Python code it is.

    Args:
        folder: the model's.
        workers: threads that encode; one if it is Python code, which holds the interpreter lock.
        trust_remote_code: code in the folder may run.

    Raises:
        StartupError: there is none, it cannot be read, or it is code that is not trusted.
    """
    if folder.has_tokenizer:
        return TextTokenizer(folder.tokenizer_file, workers=workers)
    return TextTokenizer.of_codec(PythonCodec(open_python(folder.path, trust_remote_code=trust_remote_code)))


def describe_python(tokenizer: TextTokenizer) -> str:
    """What a user should know of a tokenizer that is Python code; "" of a fast one."""
    codec = tokenizer.codec
    if not isinstance(codec, PythonCodec):
        return ""
    return (
        f"The tokenizer `{codec.name}` is Python code: one thread tokenizes, more slowly than a fast tokenizer, and "
        "requests that constrain their output are refused"
    )


def grammar_obstacle(tokenizer: TextTokenizer) -> str:
    """Why the tokenizer does not let outputs be constrained; "" where it does."""
    if isinstance(tokenizer.codec, PythonCodec):
        return "the model's tokenizer is Python code, without the table of tokens that constraints need"
    return ""


class PythonCodec:
    """See ``TokenCodec``: a tokenizer that is Python code."""

    def __init__(self, tokenizer: PythonTokenizer) -> None:
        self._tokenizer = tokenizer
        self.name = tokenizer.name
        self.special_tokens: Mapping[str, int] = tokenizer.special_tokens
        self._special_ids = frozenset(tokenizer.special_tokens.values())

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Ids of ``text``."""
        return self._tokenizer.encode(text, add_special_tokens)

    def spans(self, text: str, add_special_tokens: bool) -> list[TokenSpan]:
        """Tokens of ``text``. Such code does not tell offsets: what each token adds is looked for behind the others."""
        to_byte = byte_positions(text)
        anchor = self._tokenizer.encode("a", False)
        anchor_length = len(self.decode(anchor, False))
        found: list[TokenSpan] = []
        held: list[int] = []
        position = 0
        for token_id in self._tokenizer.encode(text, add_special_tokens):
            held.append(token_id)
            piece = self.decode([*anchor, *held], False)[anchor_length:]
            start = stop = position
            if not piece.endswith(REPLACEMENT) or len(held) > _LONGEST_CHARACTER:
                held = []
                # Code may add or drop a space in front.
                wanted = piece if text.startswith(piece, position) else piece.strip()
                place = text.find(wanted, position) if wanted else -1
                if 0 <= place <= position + _SKIPPED:
                    start, stop = place, place + len(wanted)
            is_added = stop == start and token_id in self._special_ids
            found.append(
                TokenSpan(token_id, "", 0, 0)
                if is_added
                else TokenSpan(token_id, text[start:stop], to_byte[start], to_byte[stop])
            )
            position = stop
        return found

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        """Text of ``ids``. Code that drops an unfinished character at the end shows it as U+FFFD here."""
        text = self._tokenizer.decode(ids, skip_special_tokens)
        if len(ids) > 1 and not text.endswith(REPLACEMENT) and ids[-1] not in self._special_ids:
            before = self._tokenizer.decode(ids[:-1], skip_special_tokens)
            if text == before and self._tokenizer.knows(ids[-1]):
                return text + REPLACEMENT
        return text
