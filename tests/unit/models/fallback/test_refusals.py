"""What cannot run over our attention is told before it answers wrongly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.support.driver import Driver, Generation
from tests.support.hf_versions import rope_settings
from tests.support.other_models import make_other
from tests.support.shards import WatchedReference, start_shard
from tests.support.tiny_models import rewrite_config
from tgi_core.errors import ExitCode, StartupError
from tgi_core.models.choose import choose_model
from tgi_core.models.fallback import guard
from tgi_core.models.fallback.hook import build_arguments
from tgi_core.models.fallback.model import TransformersModel
from tgi_core.models.fallback.pretrained import Pretrained


def refusal(folder: Path) -> str:
    with pytest.raises(StartupError) as caught:
        TransformersModel(Pretrained(folder), reason="")
    assert caught.value.exit_code is ExitCode.MODEL
    assert caught.value.fix
    return caught.value.cause


@pytest.mark.parametrize(
    ("model_type", "changes", "told"),
    [
        # They take the attention they are given and use their own.
        ("gpt_neox_japanese", {}, "called the attention it was given 0 times for"),
        ("recurrent_gemma", {}, "times for 3 layers"),
        (
            "lfm2",
            {"layer_types": ["conv", "full_attention", "conv"]},
            "called the attention it was given 1 times for 3",
        ),
    ],
)
def test_a_model_that_does_not_call_our_attention(
    model_type: str, changes: dict[str, Any], told: str, tmp_path: Path
) -> None:
    make_other(model_type, tmp_path, **changes)
    assert told in refusal(tmp_path)


def test_rotation_that_depends_on_the_longest_sequence_of_a_batch(tmp_path: Path) -> None:
    make_other("arcee", tmp_path, **rope_settings({"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}))
    assert "cannot be followed without weights" in refusal(tmp_path)


def test_windows_that_attention_is_not_told_of(tmp_path: Path) -> None:
    make_other("arcee", tmp_path)
    rewrite_config(tmp_path, {"sliding_window": 16})
    assert "has a sliding window of 16, of which its attention is not told" in refusal(tmp_path)
    rewrite_config(tmp_path, {"layer_types": ["full_attention", "sliding_attention", "full_attention"]})
    assert "of the type `sliding_attention` asked for a window of None" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"quantization_config": {"quant_method": "fp8"}}, "its weights are quantized"),
        ({"num_hidden_layers": 1 << 30}, "`num_hidden_layers`"),
        ({"model_type": "abacus"}, "transformers does not know it"),
        ({"num_attention_heads": 0}, "because"),
    ],
)
def test_configurations(change: dict[str, Any], told: str, tmp_path: Path) -> None:
    make_other("arcee", tmp_path)
    rewrite_config(tmp_path, change)
    assert told in refusal(tmp_path)


def test_code_in_a_repository_is_not_run(tmp_path: Path) -> None:
    make_other("arcee", tmp_path)
    (tmp_path / "configuration_x.py").write_text("raise SystemExit('it ran')")
    rewrite_config(tmp_path, {"model_type": "x", "auto_map": {"AutoConfig": "configuration_x.XConfig"}})
    assert "code from a model's repository runs only with --trust-remote-code" in refusal(tmp_path)


def test_the_refusals_of_both_ways_are_told_together(tmp_path: Path) -> None:
    make_other("arcee", tmp_path)
    rewrite_config(tmp_path, {"model_type": "abacus"})
    with pytest.raises(StartupError, match=r"`model_type` = 'abacus'.* Transformers' own model: it cannot"):
        choose_model(tmp_path)


def test_the_guard_compares_with_transformers_own_attention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_other("arcee", tmp_path)
    layers = TransformersModel(Pretrained(tmp_path), reason="")._layers

    def load() -> Any:
        return AutoModelForCausalLM.from_pretrained(tmp_path, **build_arguments(torch.float32)).eval()

    with torch.inference_mode():
        guard.check_model(load(), layers)
        with pytest.raises(StartupError, match=r"given 3 times, otherwise than 2 layers do"):
            guard.check_model(load(), layers[:2])
        monkeypatch.setattr(guard._Attends, "__call__", lambda self, q, k, v, told: self.layers.append(layers[0]) or q)
        with pytest.raises(StartupError, match=r"its logits are off by"):
            guard.check_model(load(), layers)


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    make_other("arcee", tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    norm = tensors.pop("model.norm.weight")
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(StartupError, match=r"lacks 1 tensors: model\.norm\.weight"):
        start_shard(tmp_path, WatchedReference())
    save_file({**tensors, "model.norm.weight": norm, "extra": norm.clone()}, path, metadata={"format": "pt"})
    with pytest.raises(StartupError, match=r"beyond what the model uses, 1 tensors: extra"):
        start_shard(tmp_path, WatchedReference())
    whole = tensors["lm_head.weight"].to(torch.int8)
    save_file({**tensors, "model.norm.weight": norm, "lm_head.weight": whole}, path, metadata={"format": "pt"})
    with pytest.raises(StartupError, match=r"`lm_head\.weight` in model\.safetensors has type I8"):
        start_shard(tmp_path, WatchedReference())
    save_file({**tensors, "model.norm.weight": norm[:-1].clone()}, path, metadata={"format": "pt"})
    with pytest.raises(StartupError, match=r"`model\.norm\.weight` in .* has shape \[63\], the model asks for \[64\]"):
        start_shard(tmp_path, WatchedReference())


def test_random_weights_for_benchmarks(tmp_path: Path) -> None:
    make_other("arcee", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    shard, budget = start_shard(tmp_path, WatchedReference(), load_format="dummy")
    generation = Generation([1, 2, 3], 4)
    Driver(shard, budget).run([generation])
    assert len(generation.token_ids) == 4
    assert any("ArceeForCausalLM" in note and "no architecture of this type" in note for note in shard.notes)
    shard.close()
