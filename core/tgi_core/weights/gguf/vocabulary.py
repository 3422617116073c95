"""The vocabulary of a GGUF file and its special tokens."""

from __future__ import annotations

import re
from enum import IntEnum

import msgspec

from tgi_core.weights.gguf.metadata import CONVERT_AGAIN, GgufMetadata, refuse

# llama.cpp's converter fills holes of the vocabulary with these.
_FILLER = re.compile(r"\[PAD\d+\]")
# Tokens that end a turn where the file names <eos> alone; taken only if the chat template writes them.
_END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>")


class TokenType(IntEnum):
    """``tokenizer.ggml.token_type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Vocabulary(msgspec.Struct, frozen=True):
    """The tokens in the order of their ids.

    Attributes:
        tokens: texts; byte-level vocabularies have normal tokens in GPT-2's byte alphabet.
        types: the kind of each token.
    """

    tokens: list[str]
    types: list[TokenType]

    def ids(self) -> dict[str, int]:
        """Token -> id, without the converter's fillers; of equal tokens the first counts."""
        found: dict[str, int] = {}
        for number, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True)):
            if kind != TokenType.UNUSED or not _FILLER.fullmatch(token):
                found.setdefault(token, number)
        return found

    def of_type(self, *kinds: TokenType) -> list[str]:
        """All tokens of these kinds."""
        return [token for token, kind in zip(self.tokens, self.types, strict=True) if kind in kinds]


def read_vocabulary(metadata: GgufMetadata) -> Vocabulary:
    """The file's tokens.

    Raises:
        StartupError: there are none, or their types do not fit them.
    """
    tokens = metadata.strings("tokenizer.ggml.tokens")
    if not tokens:
        raise refuse(metadata.path, "has no tokenizer", CONVERT_AGAIN)
    types = metadata.numbers("tokenizer.ggml.token_type")
    if types is None:
        return Vocabulary(tokens, [TokenType.NORMAL] * len(tokens))
    if len(types) != len(tokens):
        raise refuse(metadata.path, f"has {len(tokens)} tokens, but types for {len(types)}", CONVERT_AGAIN)
    try:
        by_number = {number: TokenType(number) for number in set(types.tolist())}
    except ValueError as error:
        raise refuse(metadata.path, f"has a token of unknown type: {error}", CONVERT_AGAIN) from error
    return Vocabulary(tokens, [by_number[number] for number in types.tolist()])


def special_token_ids(metadata: GgufMetadata) -> dict[str, int]:
    """The ids of ``bos_token_id``, ``eos_token_id`` and so on, as far as the file names them."""
    keys = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    found = {name: _token_id(metadata, key) for name, key in keys.items()}
    return {f"{name}_token_id": number for name, number in found.items() if number is not None}


def end_token_ids(metadata: GgufMetadata) -> list[int]:
    """The ids that end a reply: end of sequence, of turn and of message, and the chat template's end of turn."""
    ends = [_token_id(metadata, key) for key in ("eos", "eot", "eom")]
    template = metadata.find("tokenizer.chat_template", str) or ""
    tokens = metadata.strings("tokenizer.ggml.tokens") or []
    ends += [tokens.index(token) for token in _END_OF_TURN if token in template and token in tokens]
    return list(dict.fromkeys(number for number in ends if number is not None))


def _token_id(metadata: GgufMetadata, name: str) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    number = metadata.find(key, int)
    if number is not None and number >= len(metadata.strings("tokenizer.ggml.tokens") or []):
        raise refuse(metadata.path, f"has {number} at `{key}`, beyond its vocabulary", CONVERT_AGAIN)
    return number
