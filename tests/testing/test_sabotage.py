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
    "ignored-offset": ("kernels", "test_operation and add_rms_norm", "the offset is left out"),
    "unseeded": ("kernels", "test_operation and sample", "give something else when it is run again"),
    "half-a-seed": ("kernels", "test_operation and sample", "only the lower half of the seed counts"),
    "copied-keys": ("kernels", "copy_blocks", "only keys are copied"),
    "reads-past-rows": ("kernels", "test_operation and attention", "lies past its row's end"),
    "small-peak": ("shard", "memory_of_the_device", "the peak of the device is 1000"),
    "samples-late": ("shard", "running_ahead", "with 1 steps launched ahead"),
    "wrong-alternatives": ("shard", "every_parameter", "Alternatives"),
    "harmful-idle-time": ("shard", "test_idle_time", "with and without idle time between steps"),
    "ignored-owners": ("kernels", "test_operation and attention and soft", "attention (heads of 64"),
    "recompiling": ("shard", "waits_for_a_compiler", "programs were compiled for steps, while requests waited"),
    "shared-outputs": ("shard", "compiled_steps", "outputs do not stay until their step is collected"),
    "uncounting": ("shard", "compiled_steps", "num_compiled is 0 before and 0 after 2 steps were compiled"),
    "raising-probe": ("kernels", "test_plugin", "probe() raises OSError, which it never may: no driver"),
    "raising-capabilities": ("kernels", "test_plugin", "capabilities() raises"),
    "lying-whole-model": ("shard", "neighbours", "mixed_batches, chunked_prefill, prefix_cache, sliding_window"),
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


def test_flat_decodes_without_a_fault_pass(tmp_path: Path) -> None:
    """What the devices that compile are tried on."""
    selection = "test_operation and attention and soft or compil"
    result = run_kit(tmp_path, "sound-with-flat-decodes", "--tgi-quick", "-k", selection)
    assert (result.exit_code, result.failed) == (0, {})
    assert len(result.passed) > 6
