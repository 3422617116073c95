"""Architectures that transformers lacks, against plain torch."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.architectures import VOCAB, make_model
from tests.support.greedy import assert_greedy, make_prompts, reply_under_pressure
from tests.support.oracles import Oracle, baichuan, internlm2
from tests.support.shards import KERNELS


@pytest.mark.parametrize(
    ("make", "kernels"),
    [
        (internlm2, "cpu"),
        (partial(baichuan, alibi=False), "reference"),
        (partial(baichuan, alibi=True), "cpu"),
        pytest.param(partial(baichuan, alibi=False, vocab_size=125_696), "cpu", id="baichuan2"),
    ],
)
def test_tokens_and_logits_equal_plain_torch(make: Callable[[], Oracle], kernels: str, tmp_path: Path) -> None:
    oracle = make()
    oracle.save(tmp_path)
    assert_greedy(reply_under_pressure(tmp_path, KERNELS[kernels](), make_prompts(VOCAB)), oracle)


def test_exaone_is_llama_by_other_names(tmp_path: Path) -> None:
    model = make_model("llama-dynamic", tmp_path)
    names = {
        "model.embed_tokens.": "transformer.wte.",
        "model.norm.": "transformer.ln_f.",
        "model.layers.": "transformer.h.",
        ".self_attn.o_proj.": ".attn.attention.out_proj.",
        ".self_attn.": ".attn.attention.",
        ".input_layernorm.": ".ln_1.",
        ".post_attention_layernorm.": ".ln_2.",
        ".gate_proj.": ".c_fc_0.",
        ".up_proj.": ".c_fc_1.",
        ".down_proj.": ".c_proj.",
    }
    renamed: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        for old, new in names.items():
            name = name.replace(old, new)
        renamed[name] = tensor
    save_file(renamed, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {
        "model_type": "exaone",
        "num_layers": config.pop("num_hidden_layers"),
        "activation_function": config.pop("hidden_act"),
        "layer_norm_epsilon": config.pop("rms_norm_eps"),
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    replies = reply_under_pressure(tmp_path, KERNELS["cpu"](), make_prompts(VOCAB))
    assert_greedy(replies, lambda ids_1T: model(ids_1T, use_cache=False).logits)
