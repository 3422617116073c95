"""Metadata of GGUF files as config.json and generation_config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tests.support.hf_versions import rope_settings
from tests.unit.weights.gguf_files import Write, add_byte_level_tokenizer, add_decoder, decoder_tensors, write_gguf
from tgi_core.errors import StartupError
from tgi_core.weights.gguf.config import generation_config, model_config
from tgi_core.weights.gguf.reader import GgufFile


def make(path: Path, *steps: Write, architecture: str = "llama", **tensors: Any) -> GgufFile:
    """A llama-shaped file with the metadata of ``steps`` in addition."""
    whole = decoder_tensors() | {name.replace("__", "."): values for name, values in tensors.items()}
    return GgufFile(write_gguf(path / "m.gguf", architecture, whole, [add_decoder, add_byte_level_tokenizer, *steps]))


def test_sizes_and_tokens(tmp_path: Path) -> None:
    config = model_config(make(tmp_path), "float32")
    assert config["rms_norm_eps"] == 1e-5
    assert (config["vocab_size"], config["head_dim"], config["num_key_value_heads"]) == (320, 16, 1)
    assert (config["bos_token_id"], config["eos_token_id"]) == (0, 1)
    assert config["tie_word_embeddings"] is True
    assert "rope_scaling" not in config


def test_linear_and_yarn_scaling(tmp_path: Path) -> None:
    def linear(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(8.0)

    def yarn(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(64)
        writer.add_rope_scaling_yarn_beta_fast(16.0)

    assert model_config(make(tmp_path, linear), "float32")["rope_scaling"] == {"rope_type": "linear", "factor": 8.0}
    assert model_config(make(tmp_path, yarn), "float32")["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 16.0,
    }


def test_unknown_scaling(tmp_path: Path) -> None:
    file = make(tmp_path, lambda writer: writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE))
    with pytest.raises(StartupError, match="scales rope by `longrope`"):
        model_config(file, "float32")


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_scaling_is_recognised_by_its_factors(tmp_path: Path, factor: float) -> None:
    rope = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    scaled = LlamaConfig(
        hidden_size=32,
        num_attention_heads=2,
        max_position_embeddings=131072,
        **rope_settings(rope | {"rope_theta": 50_000.0}),
    )
    rotated, _ = ROPE_INIT_FUNCTIONS["llama3"](scaled, device=None)
    plain = 50_000.0 ** -(np.arange(0, 16, 2) / 16)
    factors = (plain / rotated.numpy()).astype(np.float32)
    config = model_config(make(tmp_path, rope_freqs__weight=factors), "float32")
    assert config["rope_scaling"] == rope
    assert len({round(float(value), 3) for value in factors}) > 2  # all three regions of the rule are met


def test_other_rope_factors_are_refused(tmp_path: Path) -> None:
    file = make(tmp_path, rope_freqs__weight=np.linspace(1, 8, 8, dtype=np.float32))
    with pytest.raises(StartupError, match="not Llama 3's"):
        model_config(file, "float32")


def test_what_is_missing_or_not_supported(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"no metadata `llama\.expert_used_count`"):
        model_config(make(tmp_path, lambda writer: writer.add_expert_count(8)), "float32")
    with pytest.raises(StartupError, match="rotates 8 of 16 features"):
        model_config(make(tmp_path, lambda writer: writer.add_rope_dimension_count(8)), "float32")


def add_gemma3(writer: gguf.GGUFWriter, layers: int, **settings: Any) -> None:
    writer.add_block_count(layers)
    writer.add_context_length(128)
    writer.add_embedding_length(5376)
    writer.add_feed_forward_length(48)
    writer.add_head_count(32)
    writer.add_key_length(128)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_sliding_window(1024)
    for key, value in settings.items():
        if isinstance(value, list):
            writer.add_array(f"gemma3.{key}", value)
        else:
            writer.add_float32(f"gemma3.{key}", value)


def gemma3_config(path: Path, layers: int, **settings: Any) -> dict[str, Any]:
    named = {key.replace("__", "."): value for key, value in settings.items()}
    tensors = {"token_embd.weight": np.zeros((320, 32), np.float32)}
    steps: list[Write] = [lambda writer: add_gemma3(writer, layers, **named), add_byte_level_tokenizer]
    return model_config(GgufFile(write_gguf(path / "m.gguf", "gemma3", tensors, steps)), "bfloat16")


def test_attention_scale_of_gemma(tmp_path: Path) -> None:
    assert gemma3_config(tmp_path, 6)["query_pre_attn_scalar"] == 128
    assert gemma3_config(tmp_path, 62)["query_pre_attn_scalar"] == 168  # the 27B model: hidden size / heads
    assert gemma3_config(tmp_path, 6, attention__scale=256**-0.5)["query_pre_attn_scalar"] == 256


def test_sliding_layers_of_gemma3(tmp_path: Path) -> None:
    default = gemma3_config(tmp_path, 12)
    assert [number for number, kind in enumerate(default["layer_types"]) if kind == "full_attention"] == [5, 11]
    assert default["rope_local_base_freq"] == 10_000.0
    named = gemma3_config(tmp_path, 2, attention__sliding_window_pattern=[True, False], rope__freq_base_swa=5_000.0)
    assert named["layer_types"] == ["sliding_attention", "full_attention"]
    assert named["rope_local_base_freq"] == 5_000.0
    with pytest.raises(StartupError, match="has not 3 entries"):
        gemma3_config(tmp_path, 3, attention__sliding_window_pattern=[True, False])


def test_every_token_that_ends_a_reply(tmp_path: Path) -> None:
    def ends(writer: gguf.GGUFWriter) -> None:
        writer.add_eot_token_id(10)
        writer.add_uint32("tokenizer.ggml.eom_token_id", 11)

    # 2 is <|im_end|>, which the chat template writes.
    assert generation_config(make(tmp_path, ends).metadata)["eos_token_id"] == [1, 10, 11, 2]


def test_special_token_beyond_the_vocabulary(tmp_path: Path) -> None:
    file = make(tmp_path, lambda writer: writer.add_pad_token_id(320))
    with pytest.raises(StartupError, match="beyond its vocabulary"):
        generation_config(file.metadata)
