"""Each faulty backend fails the kit with a message that names its fault; the same backend without it passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testing.kit import install, run_kit

FAULTS = {
    "wrong-rope-half": (
        "kernels",
        "test_operation and rope",
        "only the second half of the rotated features is written",
    ),
    "off-by-one-block": ("kernels", "test_operation and attention", "the block after the one in the table is read"),
    "ignored-window": ("kernels", "test_operation and attention", "the window is ignored"),
    "leaking-block": ("engine", "thousands", "Device memory leaks"),
    "lying": ("shard", "batch_invariant", "float32 is declared batch-invariant"),
    "host-sync": ("kernels", "recorded and (decode_inputs or sample)", "waits for the device inside a step"),
}


@pytest.fixture(autouse=True)
def _plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "site", monkeypatch)


@pytest.mark.parametrize("backend", list(FAULTS))
def test_the_fault_is_named(tmp_path: Path, backend: str) -> None:
    level, selection, message = FAULTS[backend]
    result = run_kit(tmp_path, backend, "--tgi-quick", "--tgi-level", level, "-k", selection)
    assert result.exit_code == pytest.ExitCode.TESTS_FAILED
    assert any(message in text for text in result.failed.values()), list(result.failed.values())[:1]


def test_the_same_without_a_fault_passes(tmp_path: Path) -> None:
    """What the faulty kernels are tried on."""
    selection = "(test_operation or recorded) and (rope or attention or decode_inputs or sample)"
    result = run_kit(tmp_path, "sound-with-graphs", "--tgi-quick", "--tgi-level", "kernels", "-k", selection)
    assert (result.exit_code, result.failed) == (0, {})
    assert len(result.passed) > 30
