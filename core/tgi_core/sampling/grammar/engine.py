"""What an engine of structured output implements: it turns constraints into masks over the vocabulary.

A server uses one engine. Each process that needs it opens it once; the API process's helper to test constraints, the
engine process to make masks. Everything here is free of torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tgi_core.errors import ValidationError
from tgi_core.sampling.grammar.spec import Grammar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class GrammarError(ValidationError):
    """A constraint that cannot be served: malformed, unsupported or too complex. 422, ``validation``.

    Attributes:
        reason: what is wrong.
        place: where in a JSON schema, as a URI fragment such as ``#/properties/age``; "" where that is not known.
    """

    prefix = ValidationError.prefix + "grammar is not valid: "

    def __init__(self, reason: str, place: str = "") -> None:
        super().__init__(f"at `{place}`: {reason}" if place else reason)
        self.reason = reason
        self.place = place


class Vocabulary(msgspec.Struct, frozen=True, array_like=True):
    """The tokens a mask is about.

    Attributes:
        tokenizer_file: the model's ``tokenizer.json``.
        vocab_size: width of the logits; tokens of the tokenizer beyond it cannot be produced, and logits beyond the
            tokenizer's last token must never be allowed.
        eos_token_ids: the tokens that end a reply.
    """

    tokenizer_file: Path
    vocab_size: int
    eos_token_ids: tuple[int, ...]

    @property
    def mask_words(self) -> int:
        """32-bit words in one mask."""
        return (self.vocab_size + 31) // 32


class Matcher(ABC):
    """One reply's way through a constraint. Used by one thread at a time."""

    @abstractmethod
    def accept(self, token_id: int) -> bool:
        """Go on by one token; False when the token is impossible or a limit is reached, and ``error`` says which."""

    @property
    @abstractmethod
    def error(self) -> str:
        """Why the matcher cannot go on, as a sentence for the client; "" while all is well."""

    @property
    @abstractmethod
    def is_complete(self) -> bool:
        """Whether nothing but the end of the reply may follow."""

    @abstractmethod
    def copy(self) -> Matcher:
        """An independent matcher in the same state; much cheaper than compiling."""


class GrammarCompiler(ABC):
    """An opened engine. ``compile`` and ``fill_masks`` are called from several threads at once."""

    @abstractmethod
    def compile(self, grammar: Grammar) -> Matcher:
        """A matcher before the first token.

        A JSON schema has been normalized (``prepare_grammar``). Limits must count work, not time, so that what passed
        the API process's test passes in the engine process too.

        Raises:
            GrammarError: the constraint is malformed, unsupported, too complex or matches nothing.
        """

    @abstractmethod
    def fill_masks(self, matchers: Sequence[Matcher], masks: NDArray[np.int32]) -> None:
        """Write the masks of the matchers' next tokens.

        ``masks`` int32 [len(matchers), mask_words], contiguous, its old content meaningless: bit t % 32 of word t // 32
        becomes 1 where token t may come next. EOS is allowed exactly where the reply may end. A matcher that fails has
        its ``error`` set afterwards and its mask is not used; the others are not affected. Releases the interpreter
        lock where the library can.
        """

    def close(self) -> None:  # noqa: B027 - most engines hold nothing that needs it
        """Release threads and memory."""


class GrammarEngine(ABC):
    """What ``tgi_grammar_engines`` offers."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What users choose it by."""

    @abstractmethod
    def open(self, vocabulary: Vocabulary) -> GrammarCompiler:
        """Read the tokenizer. May take seconds and may hold the interpreter lock; imports its library here.

        Raises:
            StartupError: the library is missing, or cannot use this tokenizer.
        """
