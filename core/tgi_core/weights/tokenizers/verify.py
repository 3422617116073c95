"""Compares a converted tokenizer with what it was made of: ids of texts, and texts of ids."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import msgspec
from tokenizers import Tokenizer

from tgi_core.errors import ExitCode, StartupError
from tgi_core.weights.gguf.vocabulary import TokenType
from tgi_core.weights.tokenizers.files import TokenizerSource, refuse
from tgi_core.weights.tokenizers.ranks import Ranks
from tgi_core.weights.tokenizers.sentencepiece_model import SentencepieceModel

TEXTS = (
    "",
    "a",
    "Hello world",
    "The quick brown fox jumps over the lazy dog.",
    "Don't we'll I'VE they're; it's 3.14159, 1234567890 and 007!",
    "def f(x):\n    if x:\n\t\treturn [x, 'b', {1: \"c\"}]\n\n\n    pass\n",
    "a  b   c    d\t\te\r\n f",
    "trailing space ",
    "Grüße aus München: schöne Wörter, café, naïve, “quoted” – dashes…",
    "日本語のテキスト、漢字とかな。中文文本。한국어 텍스트",
    "Привет, мир! مرحبا بالعالم नमस्ते שלום ไทย",
    "Emoji 😀😃 family 👨\u200d👩\u200d👧 flag 🇩🇪 thumbs 👍🏽",
    "e\u0301 ﬁ ① Ａ ½ \u00a0nbsp \u200b\ufeff 𝔘𝔫𝔦",
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxx ---------------- ............",
    "https://example.org/a?b=c&d=%20#e <html><b>x</b></html>",
    "CamelCaseWords snake_case_words UPPER lower MiXeD",
)
LEADING_SPACES = (" leading", "   three", "\n new line", " ")
_PIECES_A_TEXT, _MANY_PIECES = 12, 600

Encode = Callable[[str], list[int]]
Decode = Callable[[list[int]], str]


class Original(msgspec.Struct, frozen=True):
    """What a tokenizer was made of, at work.

    Attributes:
        encode: ids of a text without special tokens; of pieces that got other ids, those.
        decode: the text of such ids.
        texts: what to compare with.
    """

    encode: Encode
    decode: Decode
    texts: Sequence[str]


def verify(tokenizer: Tokenizer, original: Original, source: TokenizerSource) -> None:
    """Refuse a conversion that reads or writes any of the texts in another way than ``original``.

    Raises:
        StartupError: they differ; the message has the text.
    """
    for text in original.texts:
        expected = original.encode(text)
        found = tokenizer.encode(text, add_special_tokens=False).ids
        if found != expected:
            raise _different(source, f"{text!r} becomes {_short(found)} and not {_short(expected)}")
        written, back = original.decode(expected), tokenizer.decode(expected, skip_special_tokens=False)
        if written != back:
            raise _different(source, f"the tokens of {text!r} become {back!r} and not {written!r}")


def of_sentencepiece(
    model: SentencepieceModel, source: TokenizerSource, tokenizer: Tokenizer, *, drops_first_space: bool
) -> Original:
    """The sentencepiece library with the model; ``drops_first_space``: the conversion is known to do so.

    Raises:
        StartupError: the library is not installed or does not read the file.
    """
    library = _library("sentencepiece", source)
    try:
        processor = library.SentencePieceProcessor(model_file=str(source.file))
    except (OSError, RuntimeError) as error:
        raise refuse(f"{source.file} cannot be read as a sentencepiece model: {error}.") from error
    # Classes of transformers move pieces to other ids; each keeps its text.
    ids = [tokenizer.token_to_id(piece) for piece in model.vocabulary.tokens]
    unknown = processor.unk_id()
    number_of = {number: place for place, number in enumerate(ids) if number is not None}

    def encode(text: str) -> list[int]:
        return [_known(ids[number]) for number in processor.encode(text)]

    def decode(found: list[int]) -> str:
        return str(processor.decode([number_of[number] for number in found]))

    normal = [
        piece
        for piece, kind in zip(model.vocabulary.tokens, model.vocabulary.types, strict=True)
        if kind == TokenType.NORMAL
    ]
    texts = [*TEXTS, *([] if drops_first_space else LEADING_SPACES)]
    texts += [processor.decode_pieces(pieces).strip() for pieces in _samples(normal)]
    # The library writes unknown pieces in a way of its own.
    return Original(encode, decode, [text for text in texts if unknown not in processor.encode(text)])


def of_ranks(given: Ranks, source: TokenizerSource) -> Original:
    """The tiktoken library with the ranks.

    Raises:
        StartupError: the library is not installed.
    """
    import unicodedata

    library = _library("tiktoken", source)
    encoding = library.Encoding("original", pat_str=given.pattern, mergeable_ranks=given.ranks, special_tokens={})

    def encode(text: str) -> list[int]:
        composed = unicodedata.normalize("NFC", text) if given.composes else text
        return [given.first_id + rank for rank in encoding.encode_ordinary(composed)]

    def decode(found: list[int]) -> str:
        return str(encoding.decode([number - given.first_id for number in found]))

    pieces = [text for piece in given.ranks if (text := piece.decode(errors="ignore")).encode() == piece]
    return Original(encode, decode, [*TEXTS, *LEADING_SPACES, *("".join(sample) for sample in _samples(pieces))])


def _samples(pieces: Sequence[str]) -> list[list[str]]:
    """Some of a vocabulary's pieces, from all over it, in groups."""
    chosen = pieces[:: max(1, len(pieces) // _MANY_PIECES)]
    return [list(chosen[start : start + _PIECES_A_TEXT]) for start in range(0, len(chosen), _PIECES_A_TEXT)]


def _library(name: str, source: TokenizerSource) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise StartupError(
            f"The model's tokenizer is {source.file}, and the package {name} is not installed, which the conversion to "
            "tokenizer.json is compared with.",
            f'Install it: pip install {name}, or pip install "tgi-serve[tokenizers]".',
            ExitCode.MODEL,
        ) from error


def _different(source: TokenizerSource, how: str) -> StartupError:
    return StartupError(
        f"The conversion of {source.file} to tokenizer.json differs from its original: {how}.",
        "Use a release of the model with a tokenizer.json.",
        ExitCode.MODEL,
    )


def _known(number: Any) -> int:
    return -1 if number is None else int(number)


def _short(ids: list[int]) -> str:
    return str(ids) if len(ids) <= 20 else f"{ids[:20]}…"
