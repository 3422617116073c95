"""Tiny models of every family, written as llama.cpp's converter writes them, come back tensor by tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Cohere2Config,
    CohereConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    Glm4Config,
    GraniteConfig,
    LlamaConfig,
    Olmo2Config,
    Phi3Config,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
    Starcoder2Config,
)

from tests.support.hf_versions import rope_theta
from tests.unit.weights.gguf_files import add_byte_level_tokenizer, add_decoder, write_gguf
from tgi_core.errors import StartupError
from tgi_core.models import ARCHITECTURES
from tgi_core.weights.checkpoint import Checkpoint
from tgi_core.weights.gguf import convert_gguf
from tgi_core.weights.gguf.tensors import GGUF_MODEL_TYPES, LAYOUTS

SIZES: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "head_dim": 8,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


class Case(msgspec.Struct, frozen=True):
    """A model and how llama.cpp's converter treats it; ``extra`` is metadata below the architecture's prefix."""

    architecture: str
    config: PretrainedConfig
    extra: dict[str, Any] = {}
    permuted: bool = False
    norm_offset: float = 0.0


WINDOW = {"attention.sliding_window": 16}
SOFT_CAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
CASES = {
    "llama": Case("llama", LlamaConfig(**SIZES, rope_theta=50_000.0, tie_word_embeddings=True), permuted=True),
    "llama_untied": Case("llama", LlamaConfig(**SIZES, tie_word_embeddings=False), permuted=True),
    "llama_biases": Case("llama", LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True), permuted=True),
    "llama_wide_heads": Case(
        "llama", LlamaConfig(**SIZES | {"head_dim": 16}), {"attention.key_length": 16}, permuted=True
    ),
    "qwen2": Case("qwen2", Qwen2Config(**SIZES, tie_word_embeddings=False)),
    "qwen3": Case("qwen3", Qwen3Config(**SIZES, tie_word_embeddings=True), {"attention.key_length": 8}),
    "phi3": Case(
        "phi3",
        Phi3Config(
            **{key: value for key, value in SIZES.items() if key != "head_dim"},
            pad_token_id=2,
            original_max_position_embeddings=128,
        ),
        {"rope.dimension_count": 8},
    ),
    "granite": Case(
        "granite",
        GraniteConfig(
            **SIZES,
            attention_multiplier=0.25,
            embedding_multiplier=12.0,
            residual_multiplier=0.5,
            logits_scaling=8.0,
        ),
        {"attention.scale": 0.25, "embedding_scale": 12.0, "residual_scale": 0.5, "logit_scale": 8.0},
        permuted=True,
    ),
    "smollm3": Case("smollm3", SmolLM3Config(**SIZES, pad_token_id=2, use_sliding_window=False), permuted=True),
    "olmo2": Case("olmo2", Olmo2Config(**SIZES)),
    "starcoder2": Case(
        "starcoder2", Starcoder2Config(**SIZES, sliding_window=None), {"attention.layer_norm_epsilon": 1e-5}
    ),
    "command-r": Case(
        "command-r",
        CohereConfig(**SIZES, logit_scale=0.5, layer_norm_eps=1e-4),
        {"attention.layer_norm_epsilon": 1e-4, "logit_scale": 0.5},
    ),
    "cohere2": Case(
        "cohere2",
        Cohere2Config(**SIZES, logit_scale=0.5, layer_norm_eps=1e-4, sliding_window=16, pad_token_id=2),
        {"attention.layer_norm_epsilon": 1e-4, "logit_scale": 0.5, "attention.sliding_window": 16},
    ),
    "glm4": Case(
        "glm4",
        Glm4Config(**SIZES, attention_bias=True, pad_token_id=2),
        {"attention.key_length": 8, "rope.dimension_count": 4},
    ),
    "gemma": Case(
        "gemma",
        GemmaConfig(**SIZES, hidden_activation="gelu_pytorch_tanh"),
        {"attention.key_length": 8},
        norm_offset=1.0,
    ),
    "gemma2": Case(
        "gemma2",
        Gemma2Config(**SIZES, sliding_window=16, query_pre_attn_scalar=8),
        {"attention.key_length": 8} | WINDOW | SOFT_CAPS,
        norm_offset=1.0,
    ),
    "gemma3": Case(
        "gemma3",
        Gemma3TextConfig(**SIZES, sliding_window=16, query_pre_attn_scalar=8),
        {"attention.key_length": 8, "rope.freq_base": 1_000_000.0} | WINDOW,
        norm_offset=1.0,
    ),
}


def random_model(config: PretrainedConfig) -> torch.nn.Module:
    """Weights on a grid of 1/256, so that adding and subtracting one is exact in float32."""
    torch.manual_seed(0)
    model: torch.nn.Module = AutoModelForCausalLM.from_config(config).float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randint(-256, 256, parameter.shape) / 256)
    return model


def as_llama_cpp(case: Case, name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
    """What llama.cpp's converter makes of a tensor."""
    if case.norm_offset and name.endswith("norm.weight"):
        return values + np.float32(case.norm_offset)
    for projection, heads in (("q_proj", 4), ("k_proj", 2)):
        if case.permuted and f".{projection}." in name:
            halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
            return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))
    return values


def write_case(
    path: Path, case: Case, model: torch.nn.Module, types: dict[str, gguf.GGMLQuantizationType] | None = None
) -> Path:
    architecture = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == case.architecture)
    names = gguf.get_tensor_name_map(architecture, case.config.num_hidden_layers)
    tied = case.config.tie_word_embeddings
    tensors = {}
    for name, parameter in model.state_dict().items():
        if tied and name == "lm_head.weight":
            continue
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None
        tensors[stored] = as_llama_cpp(case, name, parameter.numpy())

    def add_metadata(writer: gguf.GGUFWriter) -> None:
        config = case.config
        writer.add_block_count(config.num_hidden_layers)
        writer.add_context_length(config.max_position_embeddings)
        writer.add_embedding_length(config.hidden_size)
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count(config.num_attention_heads)
        writer.add_head_count_kv(config.num_key_value_heads)
        if hasattr(config, "rms_norm_eps"):
            writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        extra = dict(case.extra)
        if "rope.freq_base" not in extra:
            extra["rope.freq_base"] = rope_theta(config)
        for key, value in extra.items():
            add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
            add(f"{case.architecture}.{key}", value)

    return write_gguf(path, case.architecture, tensors, [add_metadata, add_byte_level_tokenizer], types)


def compared(config: PretrainedConfig) -> dict[str, Any]:
    """What must survive; names, versions and the checkpoint's origin need not."""
    ignored = {"_name_or_path", "transformers_version", "architectures", "torch_dtype", "dtype", "pad_token_id"}
    ignored |= {"unk_token_id", "layer_types", "sliding_window_pattern", "_sliding_window_pattern", "head_dim"}
    values = config.to_dict()
    kept = {key: value for key, value in values.items() if key not in ignored}
    kept["layer_types"] = values.get("layer_types") or ["full_attention"] * config.num_hidden_layers
    kept["head_dim"] = values.get("head_dim") or config.hidden_size // config.num_attention_heads
    return kept


@pytest.mark.parametrize("name", CASES)
def test_every_tensor_and_setting_survives(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = random_model(case.config)
    folder = convert_gguf(write_case(tmp_path / "model.gguf", case, model), tmp_path / "cache")
    checkpoint = Checkpoint.open(folder)
    state = model.state_dict()
    if case.config.tie_word_embeddings:
        del state["lm_head.weight"]
    assert checkpoint.names == set(state)
    for tensor_name, expected in state.items():
        assert torch.equal(checkpoint.tensor(tensor_name), expected), tensor_name
    expected_settings = compared(case.config)
    loaded = compared(AutoConfig.from_pretrained(folder))
    assert loaded["model_type"] in GGUF_MODEL_TYPES[case.architecture]
    assert {key: loaded.get(key) for key in expected_settings} == expected_settings


def test_transformers_loads_the_folder_and_computes_the_same(tmp_path: Path) -> None:
    case = CASES["gemma3"]
    model = random_model(case.config)
    folder = convert_gguf(write_case(tmp_path / "model.gguf", case, model), tmp_path / "cache")
    loaded, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    ids = torch.arange(24)[None]
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)


def test_quantized_rows_are_put_back_in_order(tmp_path: Path) -> None:
    case = CASES["llama"]
    model = random_model(case.config)
    kind = gguf.GGMLQuantizationType.Q8_0
    path = write_case(tmp_path / "model.gguf", case, model, {"blk.0.attn_q.weight": kind})
    checkpoint = Checkpoint.open(convert_gguf(path, tmp_path / "cache"))
    name = "model.layers.0.self_attn.q_proj.weight"
    original = model.state_dict()[name].numpy()
    expected = gguf.quants.dequantize(gguf.quants.quantize(original, kind), kind)
    assert torch.equal(checkpoint.tensor(name), torch.from_numpy(expected).to(torch.bfloat16))


EXPERTS = {"expert_count": 3, "expert_used_count": 2, "expert_feed_forward_length": 24}
EXPERT_CASES: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "mixtral": (
        "llama",
        {"num_local_experts": 3, "num_experts_per_tok": 2},
        {"gate": "block_sparse_moe.experts.{}.w1", "down": "block_sparse_moe.experts.{}.w2"},
    ),
    "qwen3_moe": (
        "qwen3moe",
        {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True},
        {"gate": "mlp.experts.{}.gate_proj", "down": "mlp.experts.{}.down_proj"},
    ),
    "olmoe": (
        "olmoe",
        {"num_experts": 3, "num_experts_per_tok": 2, "intermediate_size": 48, "norm_topk_prob": False},
        {"gate": "mlp.experts.{}.gate_proj", "down": "mlp.experts.{}.down_proj"},
    ),
    "qwen2_moe": (
        "qwen2moe",
        {"num_experts": 3, "shared_expert_intermediate_size": 40, "norm_topk_prob": False},
        {"up": "mlp.experts.{}.up_proj", "down": "mlp.experts.{}.down_proj"},
    ),
}


@pytest.mark.parametrize("model_type", EXPERT_CASES)
def test_experts_are_taken_apart(model_type: str, tmp_path: Path) -> None:
    architecture, settings, names = EXPERT_CASES[model_type]
    generator = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (320, 32),
        "output_norm": (32,),
        "blk.0.attn_norm": (32,),
        "blk.0.ffn_norm": (32,),
        "blk.0.attn_q": (32, 32),
        "blk.0.attn_k": (16, 32),
        "blk.0.attn_v": (16, 32),
        "blk.0.attn_output": (32, 32),
        "blk.0.ffn_gate_inp": (3, 32),
        "blk.0.ffn_gate_exps": (3, 24, 32),
        "blk.0.ffn_up_exps": (3, 24, 32),
        "blk.0.ffn_down_exps": (3, 32, 24),
    }
    if architecture == "qwen3moe":
        shapes |= {"blk.0.attn_q_norm": (16,), "blk.0.attn_k_norm": (16,)}
    if architecture == "olmoe":
        shapes |= {"blk.0.attn_q_norm": (32,), "blk.0.attn_k_norm": (16,)}
    if architecture == "qwen2moe":
        shapes |= {f"blk.0.ffn_{name}_shexp": (40, 32) for name in ("gate", "up")}
        shapes |= {"blk.0.ffn_down_shexp": (32, 40), "blk.0.ffn_gate_inp_shexp": (32,)}
    tensors = {f"{name}.weight": generator.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}

    def add_experts(writer: gguf.GGUFWriter) -> None:
        for key, value in (EXPERTS | {"expert_shared_feed_forward_length": 40}).items():
            writer.add_uint32(f"{architecture}.{key}", value)

    steps = [add_decoder, add_experts, add_byte_level_tokenizer]
    folder = convert_gguf(write_gguf(tmp_path / "m.gguf", architecture, tensors, steps), tmp_path / "cache")
    checkpoint = Checkpoint.open(folder)
    for stored, name in names.items():
        for expert in range(3):
            found = checkpoint.tensor(f"model.layers.0.{name.format(expert)}.weight")
            assert torch.equal(found, torch.from_numpy(tensors[f"blk.0.ffn_{stored}_exps.weight"][expert]))
    if architecture == "qwen2moe":
        assert checkpoint.shape("model.layers.0.mlp.shared_expert_gate.weight") == (1, 32)
    config = AutoConfig.from_pretrained(folder)
    assert config.model_type == model_type
    assert model_type in GGUF_MODEL_TYPES[architecture]
    assert {key: getattr(config, key) for key in settings} == settings


def test_every_layout_says_what_it_becomes() -> None:
    assert LAYOUTS.keys() == GGUF_MODEL_TYPES.keys()
    known = {architecture.model_type for architecture in ARCHITECTURES}
    assert {model_type for model_types in GGUF_MODEL_TYPES.values() for model_type in model_types} <= known


@pytest.mark.parametrize(
    "architecture",
    ["deepseek2", "qwen3next", "llama4", "gpt-oss", "mamba", "mamba2", "t5", "glm4moe", "falcon", "bloom"],
)
def test_others_are_refused_by_name(architecture: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", architecture, {"token_embd.weight": np.zeros((320, 32), np.float32)})
    with pytest.raises(StartupError, match=f"architecture `{architecture}`; supported in GGUF are llama"):
        convert_gguf(path, tmp_path / "cache")
