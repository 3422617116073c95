"""Level shard: a whole tiny model of every family against the reference backend."""

from __future__ import annotations

from pathlib import Path

import pytest

from tgi_core.testing.conformance.models import model_configs, write_checkpoint
from tgi_core.testing.conformance.oracle import Oracle
from tgi_core.testing.conformance.refusal import may_refuse
from tgi_core.testing.conformance.running import make_asks, start
from tgi_core.testing.conformance.subject import Subject
from tgi_core.testing.conformance.tolerance import TOLERANCES
from tgi_core.testing.levels import Level

pytestmark = pytest.mark.tgi_level(Level.SHARD)

_STEP_TOKENS = 13
"""Cuts prompts off the blocks' borders, and mixes chunks with decodes."""


def test_model_equals_the_reference(computing: Subject, model_name: str, tmp_path: Path) -> None:
    """Greedy replies to prompts around the border of a block, cut into chunks where that is declared."""
    dtype = computing.exact_dtype
    write_checkpoint(tmp_path, model_configs(computing.head_dim)[model_name])
    with may_refuse(computing, f"{model_name} in {dtype}"), start(computing.backend, tmp_path, dtype) as running:
        replies = running.serve(make_asks(running), step_tokens=_STEP_TOKENS)
    Oracle(tmp_path).check(replies, TOLERANCES[dtype].logprob, f"{model_name} in {dtype}")
