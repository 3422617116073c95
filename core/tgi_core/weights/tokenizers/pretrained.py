"""Tokenizers as transformers reads them: fast forms of classes that only it knows, and Python code."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tgi_core.errors import ExitCode, StartupError
from tgi_core.transformers_log import tell_in_our_log
from tgi_core.weights.tokenizers.files import TokenizerSettings, find_source

_NO_LIMIT = 1 << 40


class PythonTokenizer:
    """A tokenizer of transformers, or of the model's folder, that is Python code.

    Attributes:
        name: its class.
        special_tokens: ids of its special tokens by text.
    """

    def __init__(self, tokenizer: Any) -> None:
        # The server has limits of its own; transformers would only warn about this one.
        with contextlib.suppress(AttributeError):
            tokenizer.model_max_length = _NO_LIMIT
        self._tokenizer = tokenizer
        self.name = type(tokenizer).__name__
        added = getattr(tokenizer, "added_tokens_decoder", None) or {}
        self.special_tokens = dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True)) | {
            token.content: number for number, token in added.items() if token.special
        }
        self._size: int = max([len(tokenizer), *(number + 1 for number in self.special_tokens.values())])

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Ids of ``text``."""
        return [int(number) for number in self._tokenizer.encode(text, add_special_tokens=add_special_tokens)]

    def knows(self, token_id: int) -> bool:
        """Whether there is such a token."""
        return token_id < self._size

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        """Text of ``ids``; those beyond the vocabulary have none."""
        known = [number for number in ids if self.knows(number)]
        text = self._tokenizer.decode(
            known,
            skip_special_tokens=skip_special_tokens,
            clean_up_tokenization_spaces=False,
            spaces_between_special_tokens=False,
        )
        return str(text)


def open_python(folder: Path, *, trust_remote_code: bool) -> PythonTokenizer:
    """The tokenizer of ``folder``, which has no ``tokenizer.json``, as Python code.

    Args:
        folder: the model's folder.
        trust_remote_code: code in the folder may run, where transformers does not know the tokenizer.

    Raises:
        StartupError: there is none, or only code that is not trusted knows it, or that code fails.
    """
    settings = TokenizerSettings.read(folder)
    if find_source(folder) is None and not settings.class_name and not settings.has_code:
        raise StartupError(
            f"{folder} has no tokenizer.json, and no tokenizer in any other form that can be read.",
            "Copy the files of the tokenizer into the folder.",
            ExitCode.MODEL,
        )
    try:
        return PythonTokenizer(load_pretrained(folder, trust_remote_code=False))
    except Exception as error:  # a tokenizer's class may raise anything
        if not settings.has_code:
            raise _refused(folder, error) from error
    if not trust_remote_code:
        raise StartupError(
            f"The tokenizer in {folder} is code from the model's repository, which runs only with --trust-remote-code.",
            "Read that code. If you trust it as much as this server, add --trust-remote-code.",
            ExitCode.MODEL,
        )
    try:
        return PythonTokenizer(load_pretrained(folder, trust_remote_code=True))
    except Exception as error:  # so may the folder's
        raise _refused(folder, error) from error


def load_pretrained(folder: Path, *, trust_remote_code: bool) -> Any:
    """Transformers' tokenizer, a fast one where it has one.

    Raises:
        Exception: whatever the tokenizer's class raises.
    """
    from transformers import AutoTokenizer

    tell_in_our_log()
    return AutoTokenizer.from_pretrained(
        str(folder), use_fast=True, local_files_only=True, trust_remote_code=trust_remote_code
    )


def first_line(error: Exception) -> str:
    """What an error says, in one line without a full stop."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".")


def _refused(folder: Path, error: Exception) -> StartupError:
    return StartupError(
        f"{folder} has no tokenizer.json, and transformers cannot read its tokenizer: {first_line(error)}.",
        "Use a release of the model with a tokenizer.json, or install what the message names.",
        ExitCode.MODEL,
    )
