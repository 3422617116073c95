"""Which file of a model folder its tokenizer is in, and what its configuration says about it."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from tgi_core.errors import ExitCode, StartupError
from tgi_core.lenient_json import decode_object

_NAMES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tiktoken.model", "tokenizer.model.v3")
_SENTENCEPIECE_START = b"\n"
"""The tag of the first field of a sentencepiece model, its pieces; ranks of tiktoken begin with base64."""


class TokenizerKind(Enum):
    """The forms that are converted."""

    SENTENCEPIECE = "sentencepiece"
    RANKS = "tiktoken"
    TEKKEN = "tekken"
    MERGES = "vocabulary and merges"


class TokenizerSource(msgspec.Struct, frozen=True):
    """A model's tokenizer in a form that is not read as it is.

    Attributes:
        kind: the form.
        file: the file that holds it; ``vocab.json`` for a vocabulary with merges.
    """

    kind: TokenizerKind
    file: Path


class TokenizerSettings(msgspec.Struct, frozen=True):
    """What a folder says about its tokenizer.

    Attributes:
        model_type: ``model_type`` of ``config.json``.
        class_name: the tokenizer's class in transformers, without a closing "Fast"; "" where none is named.
        has_code: the folder brings Python code for it.
        values: ``tokenizer_config.json``, and special tokens that only ``special_tokens_map.json`` names.
        added_ids: ids of added tokens by text, of ``added_tokens.json``.
    """

    model_type: str
    class_name: str
    has_code: bool
    values: dict[str, Any]
    added_ids: dict[str, int]

    @classmethod
    def read(cls, folder: Path) -> TokenizerSettings:
        """Those of ``folder``.

        Raises:
            StartupError: a file is no JSON object.
        """
        values = _read_object(folder / "special_tokens_map.json") | _read_object(folder / "tokenizer_config.json")
        auto_map = values.get("auto_map")
        added = _read_object(folder / "added_tokens.json")
        return cls(
            str(_read_object(folder / "config.json").get("model_type", "")),
            str(values.get("tokenizer_class") or "").removesuffix("Fast"),
            bool(auto_map.get("AutoTokenizer") if isinstance(auto_map, dict) else auto_map),
            values,
            {text: number for text, number in added.items() if isinstance(number, int)},
        )

    def token(self, role: str) -> str | None:
        """The text of the token of ``role``, such as ``bos_token``."""
        value = self.values.get(role)
        if isinstance(value, dict):
            value = value.get("content")
        return value if isinstance(value, str) else None


def find_source(folder: Path) -> TokenizerSource | None:
    """The tokenizer of ``folder`` in a form to convert; None where there is none."""
    if (folder / "tekken.json").is_file():
        return TokenizerSource(TokenizerKind.TEKKEN, folder / "tekken.json")
    for file in (*(folder / name for name in _NAMES), *sorted(folder.glob("*.tiktoken"))):
        if file.is_file():
            with file.open("rb") as start:
                is_pieces = start.read(1) == _SENTENCEPIECE_START
            return TokenizerSource(TokenizerKind.SENTENCEPIECE if is_pieces else TokenizerKind.RANKS, file)
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return TokenizerSource(TokenizerKind.MERGES, folder / "vocab.json")
    return None


def refuse(cause: str, fix: str = "Download or copy the model again.") -> StartupError:
    """A refusal of a model's files."""
    return StartupError(cause, fix, ExitCode.MODEL)


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return decode_object(path.read_bytes())
    except (OSError, msgspec.MsgspecError) as error:
        raise refuse(f"{path} cannot be read as JSON: {error}.") from error
