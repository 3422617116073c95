"""The device of AMD's GPUs over a strict stand-in for ``torch.cuda``, which torch's builds for ROCm call it too."""

from __future__ import annotations

import inspect

import pytest
import torch

from tests.backends.fake_accelerator import (
    FakeAccelerator,
    check_capture,
    check_failed_capture,
    check_memory,
    check_signatures,
    install,
)
from tgi_rocm.backend import RocmBackend

REAL = torch.cuda


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeAccelerator:
    fake = FakeAccelerator("cuda")
    install(monkeypatch, fake, "cuda")
    return fake


def test_the_stand_in_has_torchs_functions(fake: FakeAccelerator) -> None:
    check_signatures(fake, REAL)
    assert {"pool", "capture_error_mode"} <= set(inspect.signature(REAL.CUDAGraph.capture_begin).parameters)


def test_memory_and_waiting(fake: FakeAccelerator) -> None:
    check_memory(lambda: RocmBackend().open_device(0), fake)


def test_graphs(fake: FakeAccelerator) -> None:
    check_capture(lambda: RocmBackend().open_device(0), fake)


def test_a_capture_that_fails(fake: FakeAccelerator) -> None:
    check_failed_capture(lambda: RocmBackend().open_device(0), fake)


@pytest.mark.usefixtures("fake")
def test_products_keep_their_bits() -> None:
    matmul = torch.backends.cuda.matmul
    matmul.allow_tf32 = True
    matmul.allow_bf16_reduced_precision_reduction = True
    matmul.allow_fp16_reduced_precision_reduction = True
    RocmBackend().open_device(0)
    assert not matmul.allow_tf32
    assert not matmul.allow_bf16_reduced_precision_reduction
    assert not matmul.allow_fp16_reduced_precision_reduction
