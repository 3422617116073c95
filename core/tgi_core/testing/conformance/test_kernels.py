"""Level kernels: every operation against the reference."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import pytest
import torch

from tgi_core.contract import Kernels
from tgi_core.shards.binding import bind_attention
from tgi_core.testing.conformance.cases import Bench, Case
from tgi_core.testing.conformance.comparison import ConformanceError, check_case
from tgi_core.testing.conformance.host_reads import HostReads
from tgi_core.testing.conformance.subject import Subject
from tgi_core.testing.conformance.wrapping import wrap_kernels
from tgi_core.testing.levels import Level

pytestmark = pytest.mark.tgi_level(Level.KERNELS)


@torch.inference_mode()
def test_operation_equals_the_reference(with_kernels: Subject, case: Case, dtype: str) -> None:
    """In every type that is declared."""
    _skip_refused(with_kernels.kernels, case)
    check_case(case, with_kernels.kernels, with_kernels.torch_device, dtype)


@torch.inference_mode()
def test_what_is_recorded_reads_no_values(with_kernels: Subject, captured_case: Case) -> None:
    """A step that is recorded runs without the host: an operation that waits for the device cannot be part of it."""
    kernels, device = with_kernels.kernels, with_kernels.torch_device
    _skip_refused(kernels, captured_case)
    bench = Bench(device, getattr(torch, with_kernels.exact_dtype))
    reads: list[str] = []

    def around(name: str) -> AbstractContextManager[object]:
        return nullcontext() if name.startswith("pack_") else HostReads(device, reads)

    captured_case.run(wrap_kernels(kernels, around), bench)
    if reads:
        raise ConformanceError(
            f"{captured_case.operation} ({captured_case.label}) waits for the device inside a step that is to be "
            f"recorded as a graph: it calls {', '.join(dict.fromkeys(reads))}."
        )


def _skip_refused(kernels: Kernels, case: Case) -> None:
    """An attention that ``supports`` refuses runs on the reference; the binding says so to the user."""
    if case.spec is not None and not kernels.supports(case.operation, case.spec):
        binding = bind_attention(kernels, [case.spec])
        if not binding.notes:
            raise ConformanceError(f"attention ({case.label}) is refused without a note for the user.")
        pytest.skip(binding.notes[0])
