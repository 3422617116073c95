"""What the families share."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tgi_core.models.hf_config import ACTIVATIONS, FULL, LONGEST_CONTEXT, MOST_LAYERS, PLAIN_ACTIVATIONS, HFConfig
from tgi_core.models.spec import ArchitectureSpec, LayerSpec

GPT_NAMES: Mapping[str, str] = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "intermediate_size": "n_inner",
    "hidden_act": "activation_function",
    "rms_norm_eps": "layer_norm_epsilon",
}
"""How the configurations that descend from GPT-2 name the usual keys."""


def base(
    config: HFConfig,
    *,
    head_dim: int | None = None,
    num_kv_heads: int | None = None,
    theta: float | None = 10_000.0,
    partial_rotary: float = 1.0,
    gated: bool = True,
    activation: str | None = None,
    eps: float = 1e-6,
    tied: bool = False,
    max_positions: int | None = None,
    experts: bool = False,
) -> ArchitectureSpec:
    """A pre-norm decoder of the usual keys.

    Args:
        config: where they are read.
        head_dim: size of a head where the configuration names none.
        num_kv_heads: how many key heads there are, whatever the configuration says.
        theta: base of the rotary embedding where none is named; None for a model without rotary embedding.
        partial_rotary: share of a head's features that is rotated where none is named.
        gated: the MLP has a gate; one without is four times as wide as the model where its width is not named.
        activation, eps, tied, max_positions: what the configuration means by its silence.
        experts: the family reads what the configuration says of experts itself.

    Raises:
        StartupError: a key is missing, impossible, or asks for what is not supported.
    """
    config.refuse_if_set("use_bidirectional_attention")
    if not experts:
        config.refuse_if_set("num_local_experts", "num_experts")
    hidden_size, num_heads = config.size("hidden_size"), config.size("num_attention_heads")
    if num_kv_heads is None:
        num_kv_heads = config.size("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise config.refuse("num_key_value_heads", f"it does not divide the {num_heads} attention heads")
    if head_dim is None and not config.has("head_dim") and hidden_size % num_heads:
        raise config.refuse("num_attention_heads", f"it does not divide the hidden size, {hidden_size}")
    head_dim = config.size("head_dim", head_dim or hidden_size // num_heads)
    known = ACTIVATIONS if gated else PLAIN_ACTIVATIONS
    num_layers = config.size("num_hidden_layers", most=MOST_LAYERS)
    return ArchitectureSpec(
        vocab_size=config.size("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=config.size("intermediate_size", None if gated else 4 * hidden_size),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_positions=config.size("max_position_embeddings", max_positions, most=LONGEST_CONTEXT),
        layers=config.layers([FULL] * num_layers) if theta is not None else (LayerSpec(None, None),) * num_layers,
        ropes=() if theta is None else (config.rope(head_dim, default_theta=theta, default_partial=partial_rotary),),
        norm_eps=config.positive("rms_norm_eps", eps),
        activation=config.activation("hidden_activation", "hidden_act", known=known, default=activation),
        attention_scale=head_dim**-0.5,
        gated=gated,
        tied_head=config.get("tie_word_embeddings", bool, tied),
    )


def optional(config: HFConfig, key: str) -> float | None:
    """The value of ``key`` as a number above 0, None where it is absent."""
    return config.positive(key) if config.has(key) else None


def predicting_layers(config: HFConfig, count: int) -> tuple[str, ...]:
    """Prefixes of the layers that a checkpoint has after the model's ``count`` to predict tokens beyond the next."""
    key = "num_nextn_predict_layers"
    number = config.size(key, most=MOST_LAYERS) if config.get(key, int, 0) else 0
    return tuple(f"model.layers.{count + layer}." for layer in range(number))


def alibi_slopes(num_heads: int) -> tuple[float, ...]:
    """A slope for each head: powers of 2 ** (-8 / heads), and for other numbers of heads every other one of the next.

    Source: Press et al. 2022.
    """
    power = 1 << (num_heads.bit_length() - 1)
    slopes = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    between = [2 ** (-4 * (2 * head + 1) / power) for head in range(num_heads - power)]
    return tuple(slopes + between)


def mpt_alibi_slopes(num_heads: int, bias_max: float) -> tuple[float, ...]:
    """MPT's slopes: those of the next power of two, every other one first."""
    power = 1 << math.ceil(math.log2(num_heads))
    slopes = [2 ** (-bias_max * (head + 1) / power) for head in range(power)]
    return tuple(slopes) if power == num_heads else tuple((slopes[1::2] + slopes[::2])[:num_heads])
