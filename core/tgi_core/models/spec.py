"""A decoder-only model as data: ``Decoder`` reads it, an architecture fills it from ``config.json``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from tgi_core.models.hf_config import HFConfig


class LinearScaling(msgspec.Struct, frozen=True):
    """Positions divided by ``factor``. Source: Chen et al. 2023."""

    factor: float


class Llama3Scaling(msgspec.Struct, frozen=True):
    """Low frequencies divided by ``factor``, high ones kept, those between blended. Source: the Llama 3.1 release."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


class YarnScaling(msgspec.Struct, frozen=True):
    """NTK-by-parts interpolation; cos and sin are multiplied by ``attention_factor``. Source: Peng et al. 2023."""

    factor: float
    attention_factor: float
    beta_fast: float
    beta_slow: float
    original_max_positions: int
    truncate: bool


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling


class RopeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A rotary position embedding: base, how many features of a head it rotates, and how it is stretched."""

    theta: float
    rotary_dim: int
    scaling: RopeScaling | None = None


class LayerSpec(msgspec.Struct, frozen=True):
    """What differs between layers: the attention window (None sees all) and the index into ``ropes``."""

    window: int | None
    rope: int


class ArchitectureSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One model.

    Attributes:
        vocab_size, hidden_size, intermediate_size: V, E and F.
        num_heads, num_kv_heads, head_dim: H, K and D.
        max_positions: longest sequence the model was made for, in tokens.
        layers: one entry a layer.
        ropes: the kinds of rotary embedding that layers refer to.
        norm_eps, norm_offset: of every RMS norm; the offset is 1 where checkpoints store ``weight - 1``.
        activation: of the gated MLP, as ``Kernels.activation_mul`` names it.
        attention_scale: multiplies attention scores.
        attention_soft_cap, final_soft_cap: ``cap * tanh(x / cap)`` on scores and logits; None leaves them.
        embedding_scale: multiplies the embeddings.
        qk_norm: queries and keys have an RMS norm over each head.
        sandwich_norms: attention and MLP outputs are normed before they join the residual stream.
        qkv_bias, o_bias, mlp_bias: which linears have one.
        tied_head: the head is the embedding table.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    layers: tuple[LayerSpec, ...]
    ropes: tuple[RopeSpec, ...]
    norm_eps: float
    activation: str
    attention_scale: float
    norm_offset: float = 0.0
    attention_soft_cap: float | None = None
    final_soft_cap: float | None = None
    embedding_scale: float = 1.0
    qk_norm: bool = False
    sandwich_norms: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    tied_head: bool = False

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The distinct windows, in order of the first layer that has each: one KV group each."""
        return tuple(dict.fromkeys(layer.window for layer in self.layers))


class WeightNames(msgspec.Struct, frozen=True, kw_only=True):
    """Where a checkpoint keeps each weight, without ``.weight`` and ``.bias``; ``{}`` stands for the layer's number.

    A merged weight names its parts in order; a checkpoint that stores it merged names one.
    """

    embedding: str = "model.embed_tokens"
    final_norm: str = "model.norm"
    head: str = "lm_head"
    attention_norm: str = "model.layers.{}.input_layernorm"
    qkv: tuple[str, ...] = (
        "model.layers.{}.self_attn.q_proj",
        "model.layers.{}.self_attn.k_proj",
        "model.layers.{}.self_attn.v_proj",
    )
    q_norm: str = "model.layers.{}.self_attn.q_norm"
    k_norm: str = "model.layers.{}.self_attn.k_norm"
    o: str = "model.layers.{}.self_attn.o_proj"
    attention_out_norm: str = ""
    mlp_norm: str = "model.layers.{}.post_attention_layernorm"
    gate_up: tuple[str, ...] = ("model.layers.{}.mlp.gate_proj", "model.layers.{}.mlp.up_proj")
    down: str = "model.layers.{}.mlp.down_proj"
    mlp_out_norm: str = ""


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """A family of models.

    Attributes:
        model_type: as ``config.json`` names it.
        build: reads the configuration; raises StartupError for a feature it does not know.
        names: where the checkpoint keeps the weights.
        renames: checkpoint prefixes and what they stand for, tried in order; the first that fits is replaced.
        ignored: prefixes of tensors that the text model does not need.
    """

    model_type: str
    build: Callable[[HFConfig], ArchitectureSpec]
    names: WeightNames = WeightNames()
    renames: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()
