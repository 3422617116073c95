"""config.json in its spellings, and what is refused in it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tgi_core.errors import ExitCode, StartupError
from tgi_core.models import ARCHITECTURES, ArchitectureSpec, HFConfig
from tgi_core.models.ropes import LinearScaling, Llama3Scaling, LongRopeScaling, RopeSpec, YarnScaling
from tgi_core.models.spec import Block, LayerSpec, Norm, QKNorm

BASE = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}


def build(model_type: str, **changes: Any) -> ArchitectureSpec:
    values = {key: value for key, value in (BASE | changes).items() if value != "absent"}
    return next(each for each in ARCHITECTURES if each.model_type == model_type).build(HFConfig(values))


def refusal(model_type: str, **changes: Any) -> StartupError:
    with pytest.raises(StartupError) as caught:
        build(model_type, **changes)
    assert caught.value.exit_code is ExitCode.MODEL
    assert caught.value.fix
    return caught.value


SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize("value", [0, -1, 10**12, 2**70, 1.5, "64", True, [64]])
def test_every_size_is_a_number_that_a_model_can_have(key: str, value: Any) -> None:
    assert f"`{key}`" in refusal("llama", **{key: value}).cause


@pytest.mark.parametrize(
    ("model_type", "changes", "part"),
    [
        ("llama", {"num_key_value_heads": 3}, "does not divide the 4 attention heads"),
        ("llama", {"num_attention_heads": 3, "num_key_value_heads": 3}, "does not divide the hidden size, 64"),
        ("llama", {"head_dim": 15}, "cannot be rotated in pairs"),
        ("llama", {"partial_rotary_factor": 1.5}, "cannot be rotated in pairs"),
        ("llama", {"partial_rotary_factor": 0.0}, "must be a number above 0"),
        ("llama", {"rms_norm_eps": -1.0}, "must be a number above 0"),
        ("llama", {"rope_theta": 1}, "must be a number above 1"),
        ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 0}}, "must be a number above 0"),
        ("llama", {"rope_scaling": {"rope_type": "yarn", "original_max_position_embeddings": 0}}, "from 1 to"),
        (
            "llama",
            {"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}},
            "must be above `low_freq_factor`",
        ),
        ("mistral", {"sliding_window": -4}, "from 1 to"),
        ("gemma2", {"sliding_window": 4, "query_pre_attn_scalar": 0}, "must be a number above 0"),
        ("gemma2", {"sliding_window": 4, "attn_logit_softcapping": -50.0}, "must be a number above 0"),
        ("gemma3_text", {"sliding_window": 4, "sliding_window_pattern": 0}, "from 1 to"),
    ],
)
def test_values_that_cannot_be_computed_with(model_type: str, changes: dict[str, Any], part: str) -> None:
    assert part in refusal(model_type, **changes).cause


def test_every_model_type_has_one_architecture() -> None:
    names = [each.model_type for each in ARCHITECTURES]
    assert len(set(names)) == len(names)
    assert {"llama", "gpt2", "bloom", "falcon"} <= set(names)


def test_llama_defaults() -> None:
    spec = build("llama", num_key_value_heads="absent", head_dim=None)
    assert (spec.num_kv_heads, spec.head_dim, spec.attention_scale) == (4, 16, 0.25)
    assert spec.layers == (LayerSpec(None, 0),) * 6
    assert spec.ropes == (RopeSpec(theta=10_000.0, rotary_dim=16),)
    assert spec.windows == (None,)
    assert not spec.tied_head


@pytest.mark.parametrize(
    ("old", "new", "scaling"),
    [
        ({"rope_theta": 5e5}, {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, None),
        (
            {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4.0}},
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 4.0}},
            LinearScaling(4.0),
        ),
        (
            {
                "rope_theta": 5e5,
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8,
                    "low_freq_factor": 1,
                    "high_freq_factor": 4,
                    "original_max_position_embeddings": 128,
                },
            },
            {
                "rope_parameters": {
                    "rope_type": "llama3",
                    "rope_theta": 5e5,
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 128,
                }
            },
            Llama3Scaling(8.0, 1.0, 4.0, 128),
        ),
        (
            {
                "rope_theta": 5e5,
                "original_max_position_embeddings": 128,
                "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5, "truncate": False},
            },
            {
                "rope_parameters": {
                    "rope_type": "yarn",
                    "rope_theta": 5e5,
                    "factor": 4.0,
                    "attention_factor": 1.5,
                    "truncate": False,
                    "original_max_position_embeddings": 128,
                }
            },
            YarnScaling(4.0, 1.5, 32.0, 1.0, 128, False),
        ),
    ],
)
def test_old_and_new_spelling_of_rope(old: dict[str, Any], new: dict[str, Any], scaling: object) -> None:
    assert build("llama", **old) == build("llama", **new)
    assert build("llama", **new).ropes[0] == RopeSpec(theta=5e5, rotary_dim=16, scaling=scaling)  # type: ignore[arg-type]


def test_a_base_beside_the_new_spelling_counts() -> None:
    spec = build("llama", rope_theta=5e5, rope_parameters={"rope_type": "default"})
    assert spec.ropes[0].theta == 5e5


def test_a_scaling_in_the_old_spelling_beside_the_new_one() -> None:
    new = {"rope_type": "linear", "rope_theta": 5e5, "factor": 4.0}
    same = {"type": "linear", "factor": 4.0}
    assert build("llama", rope_parameters=new, rope_scaling=same) == build("llama", rope_parameters=new)
    cause = refusal("llama", rope_parameters=new, rope_scaling=same | {"factor": 8.0}).cause
    assert "`rope_scaling` = {'type': 'linear', 'factor': 8.0}" in cause
    assert "`rope_parameters` says something else" in cause


def test_yarn_takes_a_weight_of_0_for_none() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    assert build("llama", rope_scaling=yarn | {"mscale": 0, "mscale_all_dim": 0}) == build("llama", rope_scaling=yarn)


def test_gpt_neo_may_name_its_layers_as_a_repeated_pattern() -> None:
    layers = ["global", "local", "local"] * 2
    expected = build("gpt_neo", num_layers=6, attention_layers=layers)
    types = [[["global", "local", "local"], 2]]
    assert build("gpt_neo", num_layers=6, attention_layers="absent", attention_types=types) == expected


@pytest.mark.parametrize("where", ["top", "rope_parameters"])
def test_partial_rotary(where: str) -> None:
    changes: dict[str, Any] = {"partial_rotary_factor": 0.5}
    if where == "rope_parameters":
        changes = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, **changes}}
    assert build("llama", **changes).ropes[0].rotary_dim == 8


def test_mistral_window() -> None:
    assert build("mistral", sliding_window=32).windows == (32,)
    assert build("mistral", sliding_window=None).windows == (None,)


def test_qwen_windows() -> None:
    assert build("qwen2", use_sliding_window=False, sliding_window=32).windows == (None,)
    old = build("qwen2", use_sliding_window=True, sliding_window=32, max_window_layers=4)
    types = ["full_attention"] * 4 + ["sliding_attention"] * 2
    assert old == build("qwen2", layer_types=types, sliding_window=32)
    assert [layer.window for layer in old.layers] == [None] * 4 + [32] * 2
    assert old.windows == (None, 32)
    assert old.qkv_bias
    assert not old.o_bias


def test_qwen3_head_size() -> None:
    assert build("qwen3").head_dim == 128
    assert build("qwen3", head_dim=32).attention_scale == 32**-0.5
    assert build("qwen3").qk_norm is QKNorm.HEAD


def test_gemma() -> None:
    spec = build("gemma", hidden_act="gelu", tie_word_embeddings="absent")
    assert (spec.activation, spec.norm_offset, spec.embedding_scale, spec.tied_head) == ("gelu_tanh", 1.0, 8.0, True)
    assert not build("gemma", tie_word_embeddings=False).tied_head
    assert build("gemma", hidden_activation="gelu").activation == "gelu"


def test_silence_about_gemma2s_caps_is_their_usual_height() -> None:
    spec = build("gemma2", sliding_window=32)
    assert (spec.attention_soft_cap, spec.final_soft_cap) == (50.0, 30.0)
    spec = build("gemma2", sliding_window=32, attn_logit_softcapping=None, final_logit_softcapping=None)
    assert (spec.attention_soft_cap, spec.final_soft_cap) == (None, None)
    spec = build("gemma3_text", sliding_window=32)
    assert (spec.attention_soft_cap, spec.final_soft_cap) == (None, None)


def test_gpt_oss_is_stretched_by_32_unless_it_says_otherwise() -> None:
    sizes = {"sliding_window": 32, "num_local_experts": 8}
    assert build("gpt_oss", **sizes).ropes[0].scaling == YarnScaling(
        32.0, 0.1 * math.log(32) + 1, 32.0, 1.0, 4096, False
    )
    assert build("gpt_oss", **sizes, rope_scaling={"rope_type": "default"}).ropes[0].scaling is None


def test_silence_about_exaone4s_window_is_the_usual_one() -> None:
    spec = build("exaone4")
    assert spec.windows == (4096, None)
    assert [layer.rope for layer in spec.layers] == [0, 0, 0, None, 0, 0]
    assert {layer.rope for layer in build("exaone4", sliding_window=None).layers} == {0}


@pytest.mark.parametrize(
    ("model_type", "more", "theta", "eps"),
    [
        ("llama", {}, 1e4, 1e-6),
        ("mistral", {}, 1e4, 1e-6),
        ("mixtral", {"num_local_experts": 4}, 1e6, 1e-5),
        ("phimoe", {"num_local_experts": 4}, 1e6, 1e-5),
        ("cohere", {}, 5e5, 1e-5),
        ("cohere2", {"sliding_window": 32}, 1e4, 1e-5),
    ],
)
def test_what_silence_about_base_and_epsilon_means(
    model_type: str, more: dict[str, Any], theta: float, eps: float
) -> None:
    spec = build(model_type, rms_norm_eps="absent", **more)
    assert (spec.ropes[0].theta, spec.norm_eps) == (theta, eps)


@pytest.mark.parametrize(("said", "renormalize"), [({}, True), ({"moe_normalize_expert_weights": None}, False)])
def test_dbrx_divides_weights_by_their_sum_unless_it_says_null(said: dict[str, Any], renormalize: bool) -> None:
    spec = build("dbrx", d_model=64, n_heads=4, n_layers=2, ffn_config={"moe_num_experts": 4, **said})
    assert spec.experts is not None
    assert spec.experts.routing.renormalize is renormalize


def test_phi3s_original_context_where_none_is_named() -> None:
    scaling = build("phi3", rope_scaling=LONG_ROPE).ropes[0].scaling
    assert isinstance(scaling, LongRopeScaling)
    assert scaling.original_max_positions == 4096


def test_gemma2_alternates_and_caps() -> None:
    spec = build("gemma2", sliding_window=32, query_pre_attn_scalar=64, attn_logit_softcapping=20.0)
    assert [layer.window for layer in spec.layers] == [32, None] * 3
    assert (spec.attention_scale, spec.attention_soft_cap, spec.final_soft_cap) == (0.125, 20.0, 30.0)
    assert spec.block is Block.SANDWICH


def test_gemma3_spellings_agree() -> None:
    shared = {"sliding_window": 32, "head_dim": 16}
    old = build(
        "gemma3_text",
        rope_theta=1e6,
        rope_local_base_freq=1e4,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
        sliding_window_pattern=3,
        **shared,
    )
    new = build(
        "gemma3_text",
        rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
        layer_types=(["sliding_attention"] * 2 + ["full_attention"]) * 2,
        **shared,
    )
    assert old == new
    assert new.ropes == (
        RopeSpec(theta=1e6, rotary_dim=16, scaling=LinearScaling(8.0)),
        RopeSpec(theta=1e4, rotary_dim=16),
    )
    assert new.layers[:3] == (LayerSpec(32, 1), LayerSpec(32, 1), LayerSpec(None, 0))


def test_gemma3_fills_in_what_its_releases_leave_out() -> None:
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    spec = next(each for each in ARCHITECTURES if each.model_type == "gemma3").build(
        HFConfig({"text_config": text | {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}}})
    )
    assert (spec.vocab_size, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (262_208, 8, 4, 256)
    assert (spec.max_positions, spec.attention_scale, spec.tied_head) == (131_072, 1 / 16, True)
    assert spec.ropes == (
        RopeSpec(theta=1e6, rotary_dim=256, scaling=LinearScaling(8.0)),
        RopeSpec(theta=1e4, rotary_dim=256),
    )


@pytest.mark.parametrize(
    ("model_type", "key", "value"),
    [
        ("llama", "hidden_act", "relu6"),
        ("llama", "rope_scaling", {"type": "ntk", "factor": 2.0}),
        ("qwen2", "num_experts", 8),
        ("gpt2", "scale_attn_by_inverse_layer_idx", True),
        ("gptj", "rotary_dim", 3),
        ("gpt_neo", "attention_layers", ["global", "sparse"]),
        ("phi", "qk_layernorm", True),
        ("smollm3", "no_rope_layers", [1, 0]),
        ("exaone4", "sliding_window_pattern", "LLX"),
        ("bloom", "apply_residual_connection_post_layernorm", True),
        ("mpt", "no_bias", False),
        ("falcon", "num_ln_in_parallel_attn", 2),
        ("mixtral", "num_local_experts", 1),
        ("olmoe", "clip_qkv", 3.0),
        ("gpt_oss", "swiglu_limit", 3.0),
        ("opt", "_remove_final_layer_norm", True),
        ("llama", "num_attention_heads", "four"),
        ("llama", "num_key_value_heads", 3),
        ("llama", "vocab_size", "absent"),
        ("qwen3", "layer_types", ["linear_attention"] * 6),
        ("qwen3", "layer_types", ["full_attention"]),
        ("gemma2", "sliding_window", None),
        ("gemma3_text", "use_bidirectional_attention", True),
    ],
)
def test_refusals_name_the_key(model_type: str, key: str, value: Any) -> None:
    assert f"`{key}`" in str(refusal(model_type, **({"sliding_window": 32, "head_dim": 16} | {key: value})))


LONG_ROPE = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}


def test_long_rope() -> None:
    scaling = {**LONG_ROPE, "type": "su"}
    spec = build("phi3", rope_scaling=scaling, original_max_position_embeddings=128)
    factor = math.sqrt(1 + math.log(512 / 128) / math.log(128))
    assert spec.ropes[0].scaling == LongRopeScaling((1.0,) * 8, (2.0,) * 8, *(pytest.approx(factor),) * 2, 128)


@pytest.mark.parametrize(
    ("key", "value"), [("short_factor", [1.0] * 7), ("long_factor", [0.0] * 8), ("long_factor", None)]
)
def test_refused_factors_of_a_long_rope(key: str, value: Any) -> None:
    assert f"`{key}`" in refusal("phi3", rope_scaling={**LONG_ROPE, key: value}).cause


def test_dynamic_scaling_leaves_the_trained_context_as_it_is() -> None:
    assert build("llama", rope_scaling={"type": "dynamic", "factor": 4.0}) == build("llama")


GPT2 = {"vocab_size": 100, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512}


def test_a_configuration_by_other_names() -> None:
    config = HFConfig(GPT2 | {"n_inner": None})
    spec = next(each for each in ARCHITECTURES if each.model_type == "gpt2").build(config)
    assert (spec.hidden_size, spec.intermediate_size, spec.num_heads, spec.learned_positions) == (64, 256, 4, 512)
    assert (spec.activation, spec.tied_head, spec.gated, spec.norm) == ("gelu_tanh", True, False, Norm.LAYER_BIAS)


def test_refusals_name_the_key_that_is_there() -> None:
    for values in ({**GPT2, "n_head": 0}, {**GPT2, "n_embd": "wide"}, {**GPT2, "n_positions": None}):
        key = next(key for key, value in values.items() if value != GPT2[key])
        with pytest.raises(StartupError, match=f"`{key}`"):
            next(each for each in ARCHITECTURES if each.model_type == "gpt2").build(HFConfig(values))


def test_exaone4_pattern_of_letters() -> None:
    spec = build("exaone4", sliding_window=32, sliding_window_pattern="LLG")
    assert [layer.window for layer in spec.layers] == [32, 32, None] * 2
    assert [layer.rope for layer in spec.layers] == [0, 0, None] * 2


def test_reading_the_file(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="has no config"):
        HFConfig.read(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(StartupError, match="cannot be read"):
        HFConfig.read(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"a": 1}))
    assert HFConfig.read(tmp_path).get("a", int) == 1
