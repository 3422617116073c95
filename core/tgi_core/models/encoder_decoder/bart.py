"""BART and what descends from it; they differ in positions, in where norms stand and in scales."""

from __future__ import annotations

from functools import partial

from tgi_core.models.encoder_decoder.model import make_architecture
from tgi_core.models.encoder_decoder.spec import (
    AttentionNames,
    EncoderDecoderNames,
    EncoderDecoderSpec,
    Positions,
    StackNames,
    StackSpec,
)
from tgi_core.models.family import ModuleArchitecture
from tgi_core.models.hf_config import LONGEST_CONTEXT, MOST_LAYERS, PLAIN_ACTIVATIONS, HFConfig


def _build(
    config: HFConfig,
    *,
    max_positions: int,
    positions: Positions = Positions.LEARNED,
    position_offset: int = 0,
    pre_norm: bool = True,
    embedding_norm: bool = False,
    decoder_norms_first: bool = False,
    activation: str = "gelu",
    scale_embedding: bool = False,
) -> EncoderDecoderSpec:
    """The usual keys; ``max_positions``, ``activation`` and ``scale_embedding`` are what silence means."""
    hidden = config.size("d_model")
    scales = config.get("scale_embedding", bool, scale_embedding)
    return EncoderDecoderSpec(
        vocab_size=config.size("vocab_size"),
        hidden_size=hidden,
        encoder=_stack(config, "encoder", hidden),
        decoder=_stack(config, "decoder", hidden),
        max_positions=config.size("max_position_embeddings", max_positions, most=LONGEST_CONTEXT),
        activation=config.activation("activation_function", known=PLAIN_ACTIVATIONS, default=activation),
        pre_norm=pre_norm,
        positions=positions,
        position_offset=position_offset,
        embedding_norm=embedding_norm,
        decoder_norms_first=decoder_norms_first,
        embedding_scale=hidden**0.5 if scales else 1.0,
    )


def _stack(config: HFConfig, side: str, hidden: int) -> StackSpec:
    heads = config.size(f"{side}_attention_heads")
    if hidden % heads:
        raise config.refuse(f"{side}_attention_heads", f"it does not divide the hidden size, {hidden}")
    return StackSpec(
        num_layers=config.size(f"{side}_layers", most=MOST_LAYERS),
        num_heads=heads,
        head_dim=hidden // heads,
        intermediate_size=config.size(f"{side}_ffn_dim"),
    )


def _build_marian(config: HFConfig) -> EncoderDecoderSpec:
    if not config.get("share_encoder_decoder_embeddings", bool, True):
        raise config.unsupported("share_encoder_decoder_embeddings", "both sides must have one vocabulary")
    return _build(config, max_positions=1024, positions=Positions.SINES, pre_norm=False)


def _build_m2m(config: HFConfig) -> EncoderDecoderSpec:
    # The table begins with a row for padding, whose number the first position follows.
    offset = config.get("pad_token_id", int, 1) + 1
    return _build(
        config,
        max_positions=1024,
        positions=Positions.SINES_TO_END,
        position_offset=offset,
        activation="relu",
        scale_embedding=True,
    )


def _names(spec: EncoderDecoderSpec) -> EncoderDecoderNames:  # noqa: ARG001 - all have the same
    return EncoderDecoderNames(
        embeddings=("model.shared", "model.encoder.embed_tokens", "model.decoder.embed_tokens"),
        head="lm_head",
        logits_bias="final_logits_bias",
        encoder=_stack_names("encoder", cross=False),
        decoder=_stack_names("decoder", cross=True),
    )


def _stack_names(side: str, *, cross: bool) -> StackNames:
    stack = f"model.{side}"
    layer = f"{stack}.layers.{{}}"

    def attention(name: str) -> AttentionNames:
        return AttentionNames(f"{layer}.{name}", f"{layer}.{name}_layer_norm", "q_proj", "k_proj", "v_proj", "out_proj")

    return StackNames(
        self_attention=attention("self_attn"),
        cross_attention=attention("encoder_attn") if cross else None,
        up=(f"{layer}.fc1",),
        down=f"{layer}.fc2",
        mlp_norm=f"{layer}.final_layer_norm",
        final_norm=f"{stack}.layer_norm",
        positions=f"{stack}.embed_positions",
        embedding_norm=f"{stack}.layernorm_embedding",
    )


# Checkpoints without a head lack the prefix; positions that are computed may be stored under a name of their own.
_architecture = partial(
    make_architecture,
    names=_names,
    renames=(("shared.", "model.shared."), ("encoder.", "model.encoder."), ("decoder.", "model.decoder.")),
    ignored=(
        "model.encoder.version",
        "model.decoder.version",
        "model.encoder.embed_positions.weights",
        "model.decoder.embed_positions.weights",
    ),
)

BART_FAMILY: tuple[ModuleArchitecture, ...] = (
    _architecture("bart", partial(_build, max_positions=1024, position_offset=2, pre_norm=False, embedding_norm=True)),
    _architecture("mbart", partial(_build, max_positions=1024, position_offset=2, embedding_norm=True)),
    _architecture("pegasus", partial(_build, max_positions=1024, positions=Positions.SINES)),
    _architecture("marian", _build_marian),
    _architecture("blenderbot", partial(_build, max_positions=128)),
    _architecture(
        "blenderbot-small",
        partial(_build, max_positions=512, pre_norm=False, embedding_norm=True, decoder_norms_first=True),
    ),
    _architecture("m2m_100", _build_m2m),
)
