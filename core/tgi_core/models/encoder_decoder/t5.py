"""T5 and its descendants: relative positions, RMS norms, no biases. FLAN-T5 is a T5, MT0 an mT5."""

from __future__ import annotations

from functools import partial

from tgi_core.models.encoder_decoder.model import make_architecture
from tgi_core.models.encoder_decoder.spec import (
    AttentionNames,
    DistanceBuckets,
    EncoderDecoderNames,
    EncoderDecoderSpec,
    Positions,
    StackNames,
    StackSpec,
)
from tgi_core.models.family import ModuleArchitecture
from tgi_core.models.hf_config import ACTIVATIONS, MOST_LAYERS, PLAIN_ACTIVATIONS, HFConfig
from tgi_core.models.spec import Norm

MAX_POSITIONS = 1 << 14
"""Relative positions end nowhere; from ``relative_attention_max_distance`` on all are alike. Something must size the
tables."""


def _build(config: HFConfig, *, every_layer: bool = False, may_scale: bool = True) -> EncoderDecoderSpec:
    """``every_layer``: each has a position bias of its own. ``may_scale``: some checkpoints have scaled logits."""
    act, hidden = config.get("feed_forward_proj", str, "relu"), config.size("d_model")
    gated = act.startswith("gated-")
    # An old name that means what the models were trained with.
    name = "gelu_new" if act == "gated-gelu" else act.removeprefix("gated-")
    layers = config.size("num_layers", most=MOST_LAYERS)
    heads, head_dim = config.size("num_heads"), config.size("d_kv")
    stack = StackSpec(num_layers=layers, num_heads=heads, head_dim=head_dim, intermediate_size=config.size("d_ff"))
    buckets = config.size("relative_attention_num_buckets", 32)
    furthest = config.size("relative_attention_max_distance", 128)
    if buckets < 4 or furthest <= buckets // 2:
        raise config.refuse("relative_attention_num_buckets", f"it does not suit a distance of {furthest}")
    # The first T5 has one table for embeddings and head, and scales what the head reads; the others have two.
    scaled = config.get("scale_decoder_outputs", bool, config.get("tie_word_embeddings", bool, True))
    return EncoderDecoderSpec(
        vocab_size=config.size("vocab_size"),
        hidden_size=hidden,
        encoder=stack,
        decoder=StackSpec(
            num_layers=config.size("num_decoder_layers", layers, most=MOST_LAYERS),
            num_heads=heads,
            head_dim=head_dim,
            intermediate_size=stack.intermediate_size,
        ),
        max_positions=MAX_POSITIONS,
        activation=config.with_values(feed_forward_proj=name).activation(
            "feed_forward_proj", known=ACTIVATIONS if gated else PLAIN_ACTIVATIONS
        ),
        gated=gated,
        norm=Norm.RMS,
        norm_eps=config.positive("layer_norm_epsilon", 1e-6),
        scaled_scores=False,
        bias=False,
        positions=Positions.DISTANCE,
        distances=DistanceBuckets(num_buckets=buckets, max_distance=furthest, every_layer=every_layer),
        logit_scale=hidden**-0.5 if scaled and may_scale else 1.0,
    )


def _names(spec: EncoderDecoderSpec) -> EncoderDecoderNames:
    return EncoderDecoderNames(
        embeddings=("shared", "encoder.embed_tokens", "decoder.embed_tokens"),
        head="lm_head",
        encoder=_stack_names("encoder", spec, cross=False),
        decoder=_stack_names("decoder", spec, cross=True),
    )


def _stack_names(side: str, spec: EncoderDecoderSpec, *, cross: bool) -> StackNames:
    def attention(part: int, name: str) -> AttentionNames:
        layer = f"{side}.block.{{}}.layer.{part}"
        return AttentionNames(f"{layer}.{name}", f"{layer}.layer_norm", "q", "k", "v", "o")

    mlp = f"{side}.block.{{}}.layer.{2 if cross else 1}"
    dense = f"{mlp}.DenseReluDense"
    return StackNames(
        self_attention=attention(0, "SelfAttention"),
        cross_attention=attention(1, "EncDecAttention") if cross else None,
        up=(f"{dense}.wi_0", f"{dense}.wi_1") if spec.gated else (f"{dense}.wi",),
        down=f"{dense}.wo",
        mlp_norm=f"{mlp}.layer_norm",
        final_norm=f"{side}.final_layer_norm",
        distance_bias=f"{side}.block.{{}}.layer.0.SelfAttention.relative_attention_bias",
    )


# Early checkpoints have a bias that nothing reads.
_IGNORED = ("decoder.block.{}.layer.1.EncDecAttention.relative_attention_bias",)

T5_FAMILY: tuple[ModuleArchitecture, ...] = (
    make_architecture("t5", _build, _names, ignored=_IGNORED),
    make_architecture("mt5", partial(_build, may_scale=False), _names, ignored=_IGNORED),
    make_architecture("umt5", partial(_build, every_layer=True), _names),
)
