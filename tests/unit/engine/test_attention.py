"""The choice of attention, as every backend gets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tgi_core.contract import AttentionOption, AttentionUse, Backend, BackendInfo, Capabilities, Device, Probe
from tgi_core.engine.attention import choose_attention, list_attention
from tgi_core.errors import ExitCode, StartupError

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
}


class Plain(Backend):
    info = BackendInfo(name="plain", title="one attention")

    def probe(self) -> Probe:
        return Probe()

    def capabilities(self) -> Capabilities:
        return Capabilities()

    def open_device(self, local_index: int) -> Device:
        raise NotImplementedError


class Several(Plain):
    """A backend with libraries: one is missing, one is slow, one is fast."""

    info = BackendInfo(name="several", title="more than one")

    def __init__(self, *, fast: bool = True) -> None:
        self.fast = fast
        self.asked: list[AttentionUse] = []

    def capabilities(self) -> Capabilities:
        return Capabilities(attention=("own", "missing", "slow", "fast"))

    def attention_options(self, use: AttentionUse) -> tuple[AttentionOption, ...]:
        self.asked.append(use)
        return (
            AttentionOption(name="missing", obstacle="it is not installed", fix="Install it."),
            AttentionOption(name="slow", automatic=False, remark="slow is slower"),
            AttentionOption(name="fast", obstacle="" if self.fast else "it is tired", remark="fast is faster"),
            AttentionOption(name="own", remark="our own"),
        )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_auto_takes_the_first_that_may_be_taken(model: Path) -> None:
    choice = choose_attention(Several(), "auto", model, "float32", 16)
    assert (choice.name, choice.reason) == ("fast", "fast is faster")
    assert choose_attention(Several(fast=False), "auto", model, "float32", 16).name == "own"


def test_the_backend_is_told_what_the_model_asks(model: Path) -> None:
    backend = Several()
    choice = choose_attention(backend, "auto", model, "bfloat16", 32)
    assert backend.asked == [choice.use]
    assert (choice.use.dtype, choice.use.block_size) == ("bfloat16", 32)
    [spec] = choice.use.specs
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.window) == (4, 2, 8, None)


def test_what_was_asked_for_is_taken_even_where_auto_would_not(model: Path) -> None:
    assert choose_attention(Several(), "slow", model, "float32", 16).name == "slow"


def test_what_cannot_be_used_is_refused_with_reason_and_fix(model: Path) -> None:
    with pytest.raises(StartupError) as refusal:
        choose_attention(Several(), "missing", model, "float32", 16)
    assert refusal.value.cause == "Attention `missing` cannot be used, because it is not installed."
    assert refusal.value.fix == "Install it. Or use --attention auto."
    assert refusal.value.exit_code is ExitCode.BACKEND
    with pytest.raises(StartupError) as refusal:
        choose_attention(Several(fast=False), "fast", model, "float32", 16)
    assert refusal.value.fix == "Or use --attention auto."


def test_unknown_names_are_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="`several` has no attention `quick`") as refusal:
        choose_attention(Several(), "quick", tmp_path, "float32", 16)
    assert refusal.value.fix == "Use --attention with one of: auto, own, missing, slow, fast, or leave it out."


def test_a_backend_with_one_attention_is_asked_nothing_and_no_model_is_read(tmp_path: Path) -> None:
    for wanted in ("auto", "native"):
        assert choose_attention(Plain(), wanted, tmp_path / "nowhere", "float32", 16).name == "native"
    _, options = list_attention(Plain(), tmp_path / "nowhere", "float32", 16)
    assert [option.name for option in options] == ["native"]
    with pytest.raises(StartupError, match="`plain` has no attention `flashinfer`"):
        choose_attention(Plain(), "flashinfer", tmp_path, "float32", 16)
