"""A model's tokenizer as llguidance is to know it: literal text never becomes a special token."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import msgspec

from tgi_core.sampling.grammar.engine import Vocabulary


class LibraryTokenizer(msgspec.Struct, frozen=True):
    """What the library is opened with.

    Attributes:
        source: a ``tokenizer.json``.
        special_ids: the special tokens, EOS among them, by the text that names them in the model's own file.
    """

    source: str
    special_ids: Mapping[str, int]


def library_tokenizer(vocabulary: Vocabulary) -> LibraryTokenizer:
    """The model's ``tokenizer.json``, changed in two ways.

    The library forces text that is certain by tokenizing it, and a tokenizer finds special tokens in any text: the
    string "<|im_end|>" would end the reply. So each special token gets a name that nobody can guess; its id stays.
    EOS is special whatever the file says of it, and an added token without a logit is left out, as it cannot be
    produced and the library would not take it.

    Raises:
        OSError, msgspec.MsgspecError: the file cannot be read, or is not a tokenizer's.
        ValueError: it lacks a token that is to end replies.
    """
    content = msgspec.json.decode(vocabulary.tokenizer_file.read_bytes(), type=dict[str, Any])
    added = msgspec.convert(content.get("added_tokens", []), list[dict[str, Any]])
    model = msgspec.convert(content.get("model", {}), dict[str, Any])
    by_id = {token["id"]: token for token in added if token["id"] < vocabulary.vocab_size}
    for token_id in vocabulary.eos_token_ids:
        token = by_id.get(token_id) or _added_token(token_id, model.get("vocab", {}))
        by_id[token_id] = {**token, "special": True}
    special_ids = {token["content"]: token_id for token_id, token in by_id.items() if token.get("special")}

    nonce = secrets.token_hex(16)
    hidden = {text: f"<{nonce}-{token_id}>" for text, token_id in special_ids.items()}
    content["added_tokens"] = [_renamed_token(by_id[token_id], hidden) for token_id in sorted(by_id)]
    content["model"] = _renamed_model(model, hidden)
    return LibraryTokenizer(msgspec.json.encode(content).decode(), special_ids)


def _renamed_token(token: dict[str, Any], hidden: Mapping[str, str]) -> dict[str, Any]:
    name = hidden.get(token["content"])
    return token if name is None else {**token, "content": name, "normalized": False}


def _renamed_model(model: dict[str, Any], hidden: Mapping[str, str]) -> dict[str, Any]:
    """The model with its special tokens renamed, and without the merges that would make them out of text."""
    vocab = model.get("vocab")
    if isinstance(vocab, dict):
        vocab = {hidden.get(piece, piece): token_id for piece, token_id in vocab.items()}
    elif isinstance(vocab, list):
        vocab = [[hidden.get(piece, piece), score] for piece, score in vocab]
    renamed = {**model, "vocab": vocab}
    if "merges" in model:
        renamed["merges"] = [merge for merge in model["merges"] if not _touches(merge, hidden)]
    if model.get("unk_token") in hidden:
        renamed["unk_token"] = hidden[model["unk_token"]]
    return renamed


def _touches(merge: str | list[str], hidden: Mapping[str, str]) -> bool:
    """Whether one of the two parts of a merge, or what it makes, has been renamed."""
    first, second = merge.split(" ") if isinstance(merge, str) else merge
    return first in hidden or second in hidden or first + second in hidden


def _added_token(token_id: int, vocab: dict[str, int] | list[list[Any]]) -> dict[str, Any]:
    """An added token for an entry of the model's own vocabulary."""
    pieces = {number: piece for piece, number in vocab.items()} if isinstance(vocab, dict) else dict(enumerate(vocab))
    piece = pieces.get(token_id)
    if piece is None:
        raise ValueError(f"it has no token {token_id}, which is to end replies")
    content = piece if isinstance(piece, str) else piece[0]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": content, **flags}
