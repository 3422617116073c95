"""The frames between an API process and its helper that tests constraints: msgpack behind a 4-byte length."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from tgi_core.sampling.grammar.engine import Vocabulary
from tgi_core.sampling.grammar.spec import Grammar

LENGTH_BYTES = 4
Frame = TypeVar("Frame")


class Setup(msgspec.Struct, frozen=True, array_like=True):
    """The first frame to the helper.

    Attributes:
        engine: name of the grammar engine.
        tokenizer_file, vocab_size, eos_token_ids: the vocabulary to open it with.
        deadline_s: time that one test may take.
        memory_bytes: memory that one test may allocate.
    """

    engine: str
    tokenizer_file: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    deadline_s: float
    memory_bytes: int

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary as engines take it."""
        return Vocabulary(Path(self.tokenizer_file), self.vocab_size, self.eos_token_ids)


class Opened(msgspec.Struct, frozen=True, array_like=True):
    """The first frame from the helper: ``problem`` is why it can test nothing, "" when it can."""

    problem: str = ""


class Check(msgspec.Struct, frozen=True, array_like=True):
    """One constraint to test."""

    check_id: int
    grammar: Grammar


class Verdict(msgspec.Struct, frozen=True, array_like=True):
    """What became of a test.

    Attributes:
        grammar: the normalized constraint; None for one that is refused.
        reason, place: of the refusal, as ``GrammarError`` has them.
    """

    grammar: Grammar | None
    reason: str = ""
    place: str = ""


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """A verdict on its way back."""

    check_id: int
    verdict: Verdict


def pack(frame: msgspec.Struct) -> bytes:
    """One frame with its length in front."""
    body = msgspec.msgpack.encode(frame)
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


def take(buffer: bytearray, kind: type[Frame]) -> Frame | None:
    """The first frame in ``buffer``, removed from it; None when it is not complete."""
    end = LENGTH_BYTES + int.from_bytes(buffer[:LENGTH_BYTES], "little")
    if len(buffer) < LENGTH_BYTES or len(buffer) < end:
        return None
    frame = msgspec.msgpack.decode(memoryview(buffer)[LENGTH_BYTES:end], type=kind)
    del buffer[:end]
    return frame
