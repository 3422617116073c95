"""``tgi-serve explain``: what a server would run with, without one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.support.text_tokenizers import byte_level_json
from tgi_api.cli import main
from tgi_api.cli.launcher_options import LAUNCHER_OPTIONS
from tgi_api.cli.listener import bind_port
from tgi_api.cli.options import Effect
from tgi_core.errors import ExitCode

CONFIG = {
    "model_type": "llama",
    "vocab_size": 500,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "dtype": "float16",
    "eos_token_id": 7,
}


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in LAUNCHER_OPTIONS:
        for variable in option.env:
            monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "tokenizer.json").write_text(byte_level_json())
    save_file({"x": torch.zeros(64)}, tmp_path / "model.safetensors")
    return tmp_path


class Explained:
    """The printed object, its values by name."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> None:
        assert main(["explain", "--json", "--port", "0", *arguments]) == ExitCode.OK
        captured = capsys.readouterr()
        assert captured.err == ""
        self.everything: dict[str, Any] = json.loads(captured.out)
        self.values = {value["name"]: value for value in self.everything["values"]}

    def told(self, name: str) -> tuple[object, str]:
        return self.values[name]["value"], self.values[name]["source"]


def refused(capsys: pytest.CaptureFixture[str], exit_code: ExitCode, *arguments: str) -> str:
    assert main(["explain", "--port", "0", *arguments]) == exit_code
    return capsys.readouterr().err


def test_every_option_of_a_server_is_told(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    explained = Explained(capsys, "--model-id", str(model), "--backend", "cpu")
    assert list(explained.values) == [option.label for option in LAUNCHER_OPTIONS if option.effect is Effect.USED]
    sources = {value["source"] for value in explained.values.values()}
    assert sources == {"command line", "default", "model", "backend", "measured at start"}


def test_where_values_come_from(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAX_BATCH_SIZE", "200")
    monkeypatch.setenv("HF_MODEL_ID", str(model))
    explained = Explained(capsys, "--backend", "cpu", "--no-prefix-caching", "--max-total-tokens", "100")
    assert explained.told("--model-id") == (str(model), "environment variable HF_MODEL_ID")
    assert explained.told("--max-batch-size") == (200, "environment variable MAX_BATCH_SIZE")
    assert explained.told("--prefix-caching") == (False, "command line")
    assert explained.told("--max-total-tokens") == (100, "command line")
    assert explained.told("--max-input-tokens") == (99, "default")
    assert explained.told("--max-concurrent-requests") == (800, "default")
    assert explained.told("--payload-limit") == (2_000_000, "default")


def test_what_only_a_started_engine_knows_has_no_value(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    explained = Explained(capsys, "--model-id", str(model), "--backend", "cpu")
    for name in ("--kv-cache-memory", "--max-total-tokens", "--max-input-tokens"):
        assert explained.told(name) == (None, "measured at start")
    assert "512 tokens the model was made for" in explained.values["--max-total-tokens"]["why"]
    without_chunks = Explained(capsys, "--model-id", str(model), "--backend", "cpu", "--no-prefill-chunking")
    assert without_chunks.told("--max-total-tokens") == (512, "default")


def test_the_type_is_the_models_where_the_backend_has_it(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert Explained(capsys, "--model-id", str(model), "--backend", "null").told("--dtype") == ("float16", "model")
    on_cpu = Explained(capsys, "--model-id", str(model), "--backend", "cpu")
    assert on_cpu.told("--dtype")[1] == "backend"
    assert "the checkpoint's float16" in on_cpu.values["--dtype"]["why"]


def test_backends_with_devices_or_reasons(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    explained = Explained(capsys, "--model-id", str(model), "--backend", "cpu")
    found = {backend["name"]: backend for backend in explained.everything["backends"]}
    assert [name for name, backend in found.items() if backend["chosen"]] == ["cpu"]
    assert found["null"]["automatic"] is False
    for backend in found.values():
        assert bool(backend["devices"]) != bool(backend["reason"] and backend["fix"])
    assert [option["chosen"] for option in explained.everything["attention"]] == [True]


def test_facts_about_the_model(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = Explained(capsys, "--model-id", str(model), "--backend", "cpu").everything["model"]
    assert facts["folder"] == str(model)
    assert facts["architecture"] == "llama"
    assert facts["ends with tokens"] == "7"
    assert facts["runs as"] == "architecture `llama` of tgi-serve"
    assert facts["weights"] == "256 B in 1 tensors"
    dummy = Explained(capsys, "--model-id", str(model), "--backend", "cpu", "--load-format", "dummy")
    assert dummy.everything["model"]["weights"] == "random, made on the device"


def test_a_model_without_an_architecture_of_ours_says_how_it_runs(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (model / "config.json").write_text(json.dumps(CONFIG | {"model_type": "arcee"}))
    facts = Explained(capsys, "--model-id", str(model), "--backend", "cpu").everything["model"]
    assert facts["runs as"].startswith("transformers' `ArceeForCausalLM` over paged attention. `model_type` = 'arcee'")


MAMBA = {"model_type": "mamba", "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "vocab_size": 500}
BART_SIDES = {
    f"{side}_{name}": size
    for side in ("encoder", "decoder")
    for name, size in {"layers": 2, "ffn_dim": 48, "attention_heads": 4}.items()
}
BART = {"model_type": "bart", "is_encoder_decoder": True, "d_model": 32, "vocab_size": 500, **BART_SIDES}
OWN_CACHE = {"model_type": "xglm", "d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4}


@pytest.mark.parametrize(
    ("config", "prefix", "chunks"),
    [
        (CONFIG, (True, "default", ""), (True, "default", "")),
        (MAMBA, (False, "model", "keep a state"), (True, "default", "")),
        (BART | {"decoder_start_token_id": 2}, (False, "model", "encoder"), (False, "model", "in one step")),
        (OWN_CACHE | {"vocab_size": 500}, (False, "model", "of its own"), (None, "measured at start", "a trial")),
    ],
    ids=["llama", "mamba", "bart", "own-cache"],
)
def test_what_the_model_does_not_allow_is_told_as_off(
    model: Path,
    capsys: pytest.CaptureFixture[str],
    config: dict[str, Any],
    prefix: tuple[object, str, str],
    chunks: tuple[object, str, str],
) -> None:
    (model / "config.json").write_text(json.dumps(config))
    explained = Explained(capsys, "--model-id", str(model), "--backend", "cpu")
    for name, (value, source, why) in (("--prefix-caching", prefix), ("--prefill-chunking", chunks)):
        assert explained.told(name) == (value, source)
        assert why in explained.values[name]["why"]
    off = Explained(capsys, "--model-id", str(model), "--backend", "cpu", "--no-prefix-caching")
    assert off.told("--prefix-caching") == (False, "command line")


def test_sampling_defaults_that_are_asked_for_are_checked(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (model / "generation_config.json").write_text('{"top_p": 2}')
    arguments = ["--model-id", str(model), "--backend", "cpu"]
    assert Explained(capsys, *arguments).told("--generation-config") == ("none", "default")
    assert "`top_p` 2" in refused(capsys, ExitCode.MODEL, *arguments, "--generation-config", "auto")


def test_a_tokenizer_that_is_python_code_is_told(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (model / "tokenizer.json").unlink()
    (model / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}')
    notes = Explained(capsys, "--model-id", str(model), "--backend", "cpu").everything["notes"]
    assert any("`ByT5Tokenizer` is Python code: one thread" in note for note in notes)


def test_pickled_weights_are_explained_without_converting_them(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    facts = Explained(capsys, "--model-id", str(model), "--backend", "cpu").everything["model"]
    assert facts["weights"] == "downloaded or converted at start"


def test_weights_of_another_folder(
    model: Path,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weights, cache = tmp_path_factory.mktemp("weights"), tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("TGI_SERVE_CACHE", str(cache))
    save_file({"y": torch.zeros(16)}, weights / "model.safetensors")
    arguments = ["--model-id", str(model), "--weights-cache-override", str(weights), "--backend", "cpu"]
    facts = Explained(capsys, *arguments).everything["model"]
    assert facts["weights"] == "64 B in 1 tensors"
    assert Path(facts["folder"]).parent == cache
    (weights / "config.json").write_text((model / "config.json").read_text())
    (weights / "tokenizer.json").write_text(byte_level_json())
    assert Explained(capsys, *arguments).everything["model"]["folder"] == str(weights)


def test_a_gguf_file_is_explained_without_converting_its_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TGI_SERVE_CACHE", str(tmp_path))
    facts = Explained(capsys, "--model-id", "demo", "--backend", "cpu").everything["model"]
    assert facts["weights"] == "downloaded or converted at start"
    assert list(tmp_path.rglob("config.json"))
    assert not list(tmp_path.rglob("*.safetensors"))


def test_secrets_are_hidden(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model-id", str(model), "--backend", "cpu", "--api-key", "s3cret"]
    explained = Explained(capsys, *arguments)
    assert explained.told("--api-key") == ("<hidden>", "command line")
    assert main(["explain", "--port", "0", *arguments]) == ExitCode.OK
    assert "s3cret" not in capsys.readouterr().out + str(explained.everything)


def test_warnings_and_notes(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with bind_port("127.0.0.1", 0) as listener:
        port = str(listener.getsockname()[1])
        explained = Explained(
            capsys, "--model-id", str(model), "--backend", "cpu", "--ngrok", "--hostname", "127.0.0.1", "-p", port
        )
    assert explained.everything["warnings"] == [
        "--ngrok has no effect. No tunnel is opened; publish the port with a proxy of your own."
    ]
    assert any(f"Port {port} of 127.0.0.1 is already in use." in note for note in explained.everything["notes"])
    assert any("no chat template" in note for note in explained.everything["notes"])
    assert explained.told("--chat-template") == ("none", "model")


def test_text_for_people(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--port", "0", "--model-id", str(model), "--backend", "cpu"]) == ExitCode.OK
    printed = capsys.readouterr().out
    for part in ("Backends", "→  cpu", "Device and memory", "--kv-cache-memory", "measured at start", "Notes"):
        assert part in printed


def test_flags_are_refused_together_as_at_a_start(capsys: pytest.CaptureFixture[str]) -> None:
    error = refused(capsys, ExitCode.USAGE, "--quantize", "awq", "--max-best-of", "x", "--backend", "abacus")
    for part in ("--quantize=awq", "--max-best-of=x", "No model is given", "`abacus`"):
        assert part in error
    assert error.count("fix: ") >= 3


def test_what_the_engine_and_the_api_would_refuse_is_told_together(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (model / "tokenizer.json").unlink()
    (model / "model.safetensors").unlink()
    arguments = ["--model-id", str(model), "--backend", "cpu", "--json"]
    error = refused(capsys, ExitCode.MODEL, *arguments, "--no-prefill-chunking", "--max-total-tokens", "5000")
    for part in ("no tokenizer.json", "512 tokens the model was made for", "step of 2048 tokens cannot hold"):
        assert error.count(part) == 1
    assert "has no weights" in refused(capsys, ExitCode.MODEL, *arguments)


@pytest.mark.parametrize("change", [{"model_type": "abacus"}, {"quantization_config": {"bits": 4}}])
def test_a_model_that_is_not_supported(
    model: Path, capsys: pytest.CaptureFixture[str], change: dict[str, object]
) -> None:
    (model / "config.json").write_text(json.dumps(CONFIG | change))
    (key,) = change
    assert f"`{key}`" in refused(capsys, ExitCode.MODEL, "--model-id", str(model), "--backend", "cpu")


def test_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert "/no/model" in refused(capsys, ExitCode.MODEL, "--model-id", "/no/model", "--backend", "null")


def test_a_model_with_an_encoder_tells_what_its_decoder_starts_with(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (model / "config.json").write_text(json.dumps(BART | {"decoder_start_token_id": 2, "forced_bos_token_id": 0}))
    facts = Explained(capsys, "--model-id", str(model), "--max-total-tokens", "2048").everything["model"]
    assert facts["decoder starts with tokens"] == "2, 0"
    assert facts["context"].startswith("1024 tokens")
