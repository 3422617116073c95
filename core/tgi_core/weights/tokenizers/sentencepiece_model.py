"""Reads a sentencepiece model: pieces, and how text is normalized before it is cut.

The file is a protobuf message; field numbers are those of ``sentencepiece_model.proto``
(https://github.com/google/sentencepiece).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path

import msgspec

from tgi_core.weights.gguf.vocabulary import TokenType, Vocabulary
from tgi_core.weights.tokenizers.files import refuse

_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_PIECE, _SCORE, _TYPE = 1, 2, 3
_MODEL_TYPE, _SPACES_AT_END = 3, 24
_CHARS_MAP, _DUMMY_PREFIX, _REMOVE_EXTRA = 2, 3, 4


class ModelType(IntEnum):
    """The algorithm that cuts text into pieces."""

    UNIGRAM = 1
    BPE = 2
    WORD = 3
    CHAR = 4


class SentencepieceModel(msgspec.Struct, frozen=True):
    """A sentencepiece model.

    Attributes:
        kind: its algorithm.
        vocabulary: pieces and their types in the order of their ids; types are numbered as in GGUF files.
        scores: one for each piece.
        chars_map: the compiled map of characters to normalized ones; empty for none.
        adds_prefix: a space is put in front of a text.
        removes_extra_spaces: spaces at both ends are dropped, and runs of them become one.
        spaces_at_end: pieces have the space that separates words at their end.
    """

    kind: ModelType
    vocabulary: Vocabulary
    scores: list[float]
    chars_map: bytes
    adds_prefix: bool
    removes_extra_spaces: bool
    spaces_at_end: bool

    @property
    def falls_back_to_bytes(self) -> bool:
        """Whether characters without a piece become their bytes."""
        return TokenType.BYTE in self.vocabulary.types


def read_sentencepiece(file: Path) -> SentencepieceModel:
    """The model in ``file``.

    Raises:
        StartupError: it is damaged.
    """
    try:
        return _parse(file.read_bytes())
    except (OSError, ValueError, IndexError, struct.error) as error:
        raise refuse(f"{file} cannot be read as a sentencepiece model: {error}.") from error


def _parse(data: bytes) -> SentencepieceModel:
    pieces: list[str] = []
    scores: list[float] = []
    types: list[TokenType] = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    for number, value in _fields(data):
        if not isinstance(value, bytes):
            continue
        if number == _PIECES:
            piece = dict(_fields(value))
            text, score = piece.get(_PIECE, b""), piece.get(_SCORE, bytes(4))
            if not isinstance(text, bytes) or not isinstance(score, bytes):
                raise ValueError("a piece has no text or no score")
            pieces.append(text.decode())
            scores.append(struct.unpack("<f", score)[0])
            types.append(TokenType(_number(piece, _TYPE, 1)))
        elif number == _TRAINER:
            trainer = dict(_fields(value))
        elif number == _NORMALIZER:
            normalizer = dict(_fields(value))
    if not pieces:
        raise ValueError("it has no pieces")
    chars_map = normalizer.get(_CHARS_MAP, b"")
    return SentencepieceModel(
        ModelType(_number(trainer, _MODEL_TYPE, 1)),
        Vocabulary(pieces, types),
        scores,
        chars_map if isinstance(chars_map, bytes) else b"",
        bool(_number(normalizer, _DUMMY_PREFIX, 1)),
        bool(_number(normalizer, _REMOVE_EXTRA, 1)),
        bool(_number(trainer, _SPACES_AT_END, 0)),
    )


def _number(fields: dict[int, int | bytes], key: int, otherwise: int) -> int:
    value = fields.get(key, otherwise)
    return value if isinstance(value, int) else otherwise


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message by number, in their order: numbers of variable length, or bytes."""
    position = 0

    def variable() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    sizes = {1: 8, 5: 4}
    while position < len(data):
        key = variable()
        kind = key & 7
        if kind == 0:
            yield key >> 3, variable()
            continue
        if kind != 2 and kind not in sizes:
            raise ValueError(f"a field has the unknown wire type {kind}")
        length = variable() if kind == 2 else sizes[kind]
        if position + length > len(data):
            raise ValueError("it ends in the middle of a field")
        yield key >> 3, data[position : position + length]
        position += length
