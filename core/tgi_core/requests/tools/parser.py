"""What a family of models writes when it calls functions: how to read it, and how to have it written."""

from __future__ import annotations

import secrets
import string
from abc import abstractmethod

import msgspec

from tgi_core.requests.replies import ReplyPartParser

NAME = "{{name}}"
ARGUMENTS = "{{arguments}}"

_LETTERS_AND_DIGITS = string.ascii_letters + string.digits


class CallForm(msgspec.Struct, frozen=True, kw_only=True):
    """How calls are written, by a model that is held to it and in what a model is told to write.

    Attributes:
        call: one call, with ``NAME`` and ``ARGUMENTS`` (a JSON object) in their places.
        begin, between, end: what stands before, between and behind the calls of a reply.
        is_parallel: whether a reply may have several calls.
    """

    call: str
    begin: str = ""
    between: str = ""
    end: str = ""
    is_parallel: bool = True


class ToolParser(ReplyPartParser):
    """Reads a reply's content and calls; the last of a reply's parsers."""

    @property
    @abstractmethod
    def form(self) -> CallForm | None:
        """How the family writes calls; None when it has no form with the arguments as JSON.

        Then calls that a request demands are written, and read, as the parser ``json`` has them.
        """

    @property
    def call_id_length(self) -> int | None:
        """Letters and digits in the id of a call where the family's chat template insists; None for a long id."""
        return None

    def make_call_id(self) -> str:
        """A new id for a call."""
        if self.call_id_length is None:
            return f"call_{secrets.token_hex(12)}"
        return "".join(secrets.choice(_LETTERS_AND_DIGITS) for _ in range(self.call_id_length))
