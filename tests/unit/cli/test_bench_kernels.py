"""``tgi-serve bench kernels``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tgi_api.cli import main
from tgi_core.errors import ExitCode

CONFIG = {
    "model_type": "qwen3",
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
    "dtype": "float32",
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_every_operation_is_measured_printed_and_written(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    command = ["bench", "kernels", "--backend", "cpu", "--model-id", str(model), "--json", str(out)]
    assert main([*command, "--rows", "2", "--context", "20", "--prefill", "33"]) == ExitCode.OK
    report = json.loads(out.read_text())
    assert (report["backend"], report["dtype"]) == ("cpu", "float32")
    decode, prefill = report["steps"]
    assert (decode["step"], decode["rows"], decode["tokens"]) == ("decode", 2, 20)
    assert (prefill["step"], prefill["rows"], prefill["tokens"]) == ("prefill", 1, 33)
    names = [figure["operation"] for figure in decode["operations"]]
    assert names[3] == "norm_rope_write_kv"
    assert [figure["operation"] for figure in prefill["operations"]] == names[:8]
    for figure in decode["operations"]:
        assert figure["tb_per_s"] == pytest.approx(figure["moved_bytes"] / figure["time_us"] / 1e6)
        allowed_us = figure["moved_bytes"] / report["ceilings"]["copy_tb_per_s"] / 1e6
        assert figure["ceiling_share"] >= 0.999 * allowed_us / figure["time_us"]
    spent_ms = sum(figure["launches"] * figure["time_us"] for figure in decode["operations"]) / 1e3
    assert decode["total_ms"] == pytest.approx(spent_ms)
    printed = capsys.readouterr().out
    for part in ("decode, 2 rows at 20 tokens", "prefill of 33 tokens", *names, "a large copy", "together"):
        assert part in printed


def test_a_backend_that_owns_whole_models_is_refused(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "kernels", "--backend", "null", "--model-id", str(model)]) == ExitCode.BACKEND
    assert "`null` owns whole models" in capsys.readouterr().err


def test_a_model_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "kernels", "--backend", "cpu"]) == ExitCode.USAGE
    assert "--model-id DIR" in capsys.readouterr().err


def test_a_model_of_an_unknown_architecture_is_refused(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (model / "config.json").write_text(json.dumps(CONFIG | {"model_type": "abacus"}))
    assert main(["bench", "kernels", "--backend", "cpu", "--model-id", str(model)]) == ExitCode.MODEL
    assert "abacus" in capsys.readouterr().err
