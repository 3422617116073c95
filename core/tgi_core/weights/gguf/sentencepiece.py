"""SentencePiece BPE tokenizers (``tokenizer.ggml.model`` llama): the file has a score for each piece, the merges follow
from the scores."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tokenizers import Tokenizer, decoders, normalizers
from tokenizers.models import BPE

from tgi_core.weights.gguf.metadata import CONVERT_AGAIN, GgufMetadata, refuse
from tgi_core.weights.gguf.vocabulary import TokenType, Vocabulary

SPACE = "\u2581"


def sentencepiece_tokenizer(metadata: GgufMetadata, vocabulary: Vocabulary) -> Tokenizer:
    """The tokenizer without its special tokens: BPE over characters that falls back to the bytes of unknown ones.

    Raises:
        StartupError: the scores are missing or do not fit the vocabulary.
    """
    scores = metadata.numbers("tokenizer.ggml.scores")
    if scores is None or len(scores) != len(vocabulary.tokens):
        raise refuse(metadata.path, "has no score for each token of its sentencepiece tokenizer", CONVERT_AGAIN)
    unknown = vocabulary.of_type(TokenType.UNKNOWN)
    tokenizer = Tokenizer(
        BPE(
            vocabulary.ids(),
            merges_by_score(vocabulary, scores.tolist()),
            unk_token=unknown[0] if unknown else None,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = metadata.find("tokenizer.ggml.add_space_prefix", bool)
    if prefix is None:
        prefix = not metadata.architecture.startswith("gemma")
    replace = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), replace]) if prefix else replace
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return tokenizer


def with_visible_spaces(vocabulary: Vocabulary) -> Vocabulary:
    """The vocabulary with user-defined runs of spaces written the way the normalizer writes spaces.

    llama.cpp's converter stores such pieces with real spaces, which no normalized text contains.
    """
    tokens = [
        token.replace(" ", SPACE) if _is_user_defined_run(token, kind) else token
        for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)
    ]
    return Vocabulary(tokens, vocabulary.types)


def merges_by_score(vocabulary: Vocabulary, scores: list[float]) -> list[tuple[str, str]]:
    """All ways to put a piece together from two others, best piece first.

    SentencePiece's BPE joins the neighbours whose union has the best score, so the rank of a merge is the rank of its
    result. User-defined runs of spaces rank first whatever their score: SentencePiece takes them whole, before any
    merge. Source: Kudo and Richardson 2018.
    """
    ranked: dict[str, float] = {}
    for token, kind, score in zip(vocabulary.tokens, vocabulary.types, scores, strict=True):
        if kind == TokenType.NORMAL:
            ranked.setdefault(token, score)
        elif _is_user_defined_run(token, kind):
            ranked.setdefault(token, math.inf)
    # Among equal scores the longer piece goes first, which reads a run of spaces greedily from the left.
    order = sorted(ranked, key=lambda token: (-ranked[token], -len(token)))
    return [pair for token in order for pair in _pairs(token, ranked)]


def _pairs(token: str, pieces: dict[str, float]) -> Iterator[tuple[str, str]]:
    for cut in range(len(token) - 1, 0, -1):
        left, right = token[:cut], token[cut:]
        if left in pieces and right in pieces:
            yield left, right


def _is_user_defined_run(token: str, kind: TokenType) -> bool:
    return kind == TokenType.USER_DEFINED and not token.strip(" " + SPACE)
