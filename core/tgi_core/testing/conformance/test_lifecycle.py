"""Level engine: thousands of random requests end as they should and leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tgi_core.testing.conformance.comparison import ConformanceError
from tgi_core.testing.conformance.engine import EOS, Fuzz, held_bytes
from tgi_core.testing.conformance.models import model_configs, write_checkpoint
from tgi_core.testing.conformance.oracle import Oracle
from tgi_core.testing.conformance.running import Reply, check_late_compiles, start
from tgi_core.testing.conformance.subject import Subject
from tgi_core.testing.conformance.tolerance import TOLERANCES
from tgi_core.testing.levels import Level

pytestmark = pytest.mark.tgi_level(Level.ENGINE)

_WAVES = 6
_WAVE, _QUICK_WAVE = 500, 20
_SLOTS = 12
_CACHE_TOKENS = 400
"""Less than the slots need together, so that requests lose their blocks and are computed again."""

_CHECKED = 12
_SLACK_BYTES = 2 << 20
"""What allocators may take and keep without anything having leaked."""


def test_thousands_of_requests(subject: Subject, tmp_path: Path) -> None:
    """Random lengths and parameters, cancellations, stops, preemptions; blocks, slots and memory come back."""
    write_checkpoint(tmp_path, model_configs(subject.head_dim)["llama"])
    wave = _QUICK_WAVE if subject.quick else _WAVE
    dtype = subject.exact_dtype
    held, checked = [], list[Reply]()
    with start(
        subject.backend,
        tmp_path,
        dtype,
        max_slots=_SLOTS,
        # Of small blocks a request needs one after the other.
        block_size=min(subject.capabilities.block_sizes),
        kv_cache_tokens=_CACHE_TOKENS,
        eos_token_ids=tuple(EOS),
    ) as running:
        fuzz = Fuzz(running)
        for _ in range(_WAVES):
            replies = fuzz.wave(wave)
            checked += replies[: _CHECKED // _WAVES]
            held.append(held_bytes(subject.device))
        divides = running.budget.block_size < running.budget.max_total_tokens
        if divides and not fuzz.scheduler.preemptions:
            raise ConformanceError(f"A cache of {_CACHE_TOKENS} tokens was never full: more was allocated.")
        check_late_compiles(running)
    _check_memory(held, wave)
    if subject.capabilities.computes:
        what = f"among {_WAVES * wave} requests with cancellations and preemptions"
        Oracle(tmp_path).check(checked, TOLERANCES[dtype].logprob, what)


def _check_memory(held: list[int], wave: int) -> None:
    """The first waves size what is kept for shapes that warm-up has not seen."""
    half = len(held) // 2
    grown = min(held[half:]) - max(held[:half])
    grown = max(grown, held[-1] - max(held[:half]))
    if grown > _SLACK_BYTES:
        raise ConformanceError(
            f"Device memory leaks: after each {wave} requests {', '.join(f'{size:,}' for size in held)} bytes are "
            "held, and nothing runs any more. What a request or a step takes, such as a block, is not given back."
        )
