"""Level perf: what operations and steps reach, beside ceilings of the same run, for ``--tgi-results`` to keep."""

from __future__ import annotations

import math
import random
import statistics
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

import pytest

from tgi_core.benchmark.kernels import KernelBenchmark
from tgi_core.testing.conformance.models import write_checkpoint
from tgi_core.testing.conformance.models.configs import large_config
from tgi_core.testing.conformance.models.sizes import VOCAB_SIZE
from tgi_core.testing.conformance.running import Ask, Running, start
from tgi_core.testing.conformance.subject import Subject
from tgi_core.testing.conformance.wrapping import wrap_backend
from tgi_core.testing.levels import Level
from tgi_core.testing.pytest_plugin import OUTCOME
from tgi_core.testing.results import HostFigure, PerformanceReport

pytestmark = pytest.mark.tgi_level(Level.PERF)

_ROWS = (1, 32)
_CONTEXT_TOKENS, _PREFILL_TOKENS = 512, 512
_TOKENS = 60
_PROMPT_TOKENS = 16


def test_figures(computing: Subject, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """Each operation of a decode and a prefill step, then whole steps of decodes through the shard."""
    dtype = computing.capabilities.dtypes[0]
    config = large_config(max(computing.head_dim, 64), quick=computing.quick)
    write_checkpoint(tmp_path, config)
    ceilings, steps = None, []
    if computing.has_kernels:
        benchmark = KernelBenchmark(computing.backend, tmp_path, dtype)
        ceilings = benchmark.ceilings
        steps = [benchmark.decode(rows, _CONTEXT_TOKENS) for rows in _ROWS]
        steps.append(benchmark.prefill(_PREFILL_TOKENS))
    host = [_host_figure(computing, tmp_path, dtype, rows) for rows in _ROWS]
    report = PerformanceReport(
        model=f"{config['num_hidden_layers']} layers of {config['hidden_size']} features",
        dtype=dtype,
        ceilings=ceilings,
        steps=steps,
        host=host,
    )
    for figure in (figure for step in steps for figure in step.operations):
        assert 0 < figure.time_us < math.inf, f"{figure.operation} takes {figure.time_us} us"
    pytestconfig.stash[OUTCOME].performance = report


class _Calls:
    """Counts operations.

    Attributes:
        count: so far.
    """

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, _name: str) -> AbstractContextManager[object]:
        self.count += 1
        return nullcontext()


class _Step(NamedTuple):
    """One step of decodes: seconds from launch to collect, those of launch and sample alone, operations called."""

    step_s: float
    host_s: float
    operations: int


def _host_figure(subject: Subject, folder: Path, dtype: str, rows: int) -> HostFigure:
    with start(subject.backend, folder, dtype, max_slots=rows) as running:
        steps = _time_decodes(running, rows, _Calls())
    operations = 0
    if subject.has_kernels:
        calls = _Calls()
        with start(wrap_backend(subject.backend, calls), folder, dtype, max_slots=rows) as running:
            operations = _time_decodes(running, rows, calls)[-1].operations
    return HostFigure(
        rows=rows,
        step_ms=statistics.median(step.step_s for step in steps) * 1e3,
        host_ms=statistics.median(step.host_s for step in steps) * 1e3,
        operations=operations,
    )


def _time_decodes(running: Running, rows: int, calls: _Calls) -> list[_Step]:
    """Steps of ``rows`` decodes, none launched ahead."""
    pick = random.Random(0)
    scheduler = running.scheduler()
    for number in range(rows):
        prompt = [pick.randrange(VOCAB_SIZE) for _ in range(_PROMPT_TOKENS)]
        scheduler.add(Ask(prompt, _TOKENS).request(number))
    steps = []
    while (plan := scheduler.plan()) is not None:
        before, begun = calls.count, time.perf_counter()
        ticket = running.shard.launch(plan)
        running.shard.sample(ticket, None)
        launched = time.perf_counter()
        result = running.shard.collect(ticket)
        if plan.num_decodes == rows:
            steps.append(_Step(time.perf_counter() - begun, launched - begun, calls.count - before))
        scheduler.apply(result)
    return steps
