"""The device of Intel GPUs over a strict stand-in for ``torch.xpu``."""

from __future__ import annotations

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
from tgi_xpu.backend import XpuBackend

REAL = torch.xpu


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeAccelerator:
    fake = FakeAccelerator("xpu")
    install(monkeypatch, fake, "xpu")
    return fake


def test_the_stand_in_has_torchs_functions_and_no_others(fake: FakeAccelerator) -> None:
    check_signatures(fake, REAL)
    assert list(REAL.XPUGraph.capture_begin.__annotations__) == ["pool", "return"]
    with pytest.raises(AttributeError):
        torch.xpu.ipc_collect()  # type: ignore[attr-defined]


def test_memory_and_waiting(fake: FakeAccelerator) -> None:
    check_memory(lambda: XpuBackend().open_device(0), fake)


def test_graphs(fake: FakeAccelerator) -> None:
    check_capture(lambda: XpuBackend().open_device(0), fake)


def test_a_capture_that_fails(fake: FakeAccelerator) -> None:
    check_failed_capture(lambda: XpuBackend().open_device(0), fake)
