"""``tgi-serve bench engine``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tgi_api.cli import main
from tgi_core.benchmark.engine import BenchCase
from tgi_core.errors import ExitCode

CONFIG = {
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "dtype": "float32",
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def run(model: Path, *arguments: str) -> int:
    return main(["bench", "engine", "--backend", "cpu", "--model-id", str(model), *arguments])


def test_cases_are_measured_and_written(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    code = run(
        model, "--cases", "n2_i20_o5,n1_i3_o2", "--decode-steps", "2", "--max-batch-size", "2", "--json", str(out)
    )
    assert code == ExitCode.OK
    report = json.loads(out.read_text())
    assert [case["case"] for case in report["cases"]] == ["n2_i20_o5", "n1_i3_o2"]
    case = report["cases"][0]
    assert case["output_tokens_per_s"] == pytest.approx(10 / case["seconds"])
    assert case["steps"] == 5
    (step,) = report["decode_steps"]
    weights = report["memory_bytes"]["weights"]
    cache = 2 * 2 * 2 * 8 * 4 * step["context_tokens"] * 2
    # The embedding table is gathered from, not read.
    assert step["read_bytes"] == weights - 128 * 32 * 4 + cache
    assert report["backend"] == "cpu"
    assert "n2_i20_o5" in capsys.readouterr().out


def test_a_sequence_that_does_not_fit_is_refused(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(model, "--cases", "n1_i400_o400") == ExitCode.USAGE
    assert "512" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["n1_i2", "n0_i2_o3", "i2_n1_o3", "n1_i2_o3x"])
def test_malformed_cases(text: str) -> None:
    with pytest.raises(ValueError, match="n256_i512_o256"):
        BenchCase.parse(text)


def test_cases_read_as_they_are_written() -> None:
    assert str(BenchCase.parse("n256_i512_o128")) == "n256_i512_o128"
    assert BenchCase.parse("n3_i2_o1") == BenchCase(3, 2, 1)
