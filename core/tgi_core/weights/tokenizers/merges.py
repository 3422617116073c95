"""A vocabulary with merges at work, as its two files say: what a fast tokenizer of them is compared with."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
from tokenizers import Tokenizer, decoders

from tgi_core.weights.tokenizers.files import TokenizerSource, refuse
from tgi_core.weights.tokenizers.verify import LEADING_SPACES, TEXTS, Original


def of_merges(tokenizer: Tokenizer, source: TokenizerSource) -> Original:
    """``vocab.json`` and ``merges.txt`` applied word by word; how text is cut into words is taken from ``tokenizer``.

    Source of the algorithm: Sennrich et al. 2016, over bytes as in GPT-2.

    Raises:
        StartupError: a file is damaged.
    """
    vocab, ranks = _read(source)
    pieces = {number: piece for piece, number in vocab.items()}
    bytes_to_text = decoders.ByteLevel()

    def encode(text: str) -> list[int]:
        # Both attributes exist in every version, though type stubs of some know them as never absent.
        normalizer: Any = tokenizer.normalizer
        cutter: Any = tokenizer.pre_tokenizer
        normal = text if normalizer is None else normalizer.normalize_str(text)
        words = [word for word, _ in cutter.pre_tokenize_str(normal)] if cutter is not None else [normal]
        return [vocab.get(piece, -1) for word in words for piece in _join(list(word), ranks)]

    def decode(ids: list[int]) -> str:
        return bytes_to_text.decode([pieces[number] for number in ids])

    return Original(encode, decode, [*TEXTS, *LEADING_SPACES])


def _read(source: TokenizerSource) -> tuple[dict[str, int], dict[tuple[str, str], int]]:
    file = source.file.with_name("merges.txt")
    try:
        vocab = msgspec.json.decode(source.file.read_bytes(), type=dict[str, int])
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError, msgspec.MsgspecError) as error:
        raise refuse(f"{source.file} and {file.name} cannot be read as a tokenizer: {error}.") from error
    pairs = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    return vocab, {(pair[0], pair[1]): rank for rank, pair in enumerate(pairs) if len(pair) == 2}


def _join(pieces: list[str], ranks: dict[tuple[str, str], int]) -> list[str]:
    """Join neighbours, those of the lowest rank first, until none has one."""
    while len(pieces) > 1:
        best = min(pairwise(pieces), key=lambda pair: ranks.get(pair, len(ranks)))
        if best not in ranks:
            break
        joined = []
        position = 0
        while position < len(pieces):
            if tuple(pieces[position : position + 2]) == best:
                joined.append(best[0] + best[1])
                position += 2
            else:
                joined.append(pieces[position])
                position += 1
        pieces = joined
    return pieces
