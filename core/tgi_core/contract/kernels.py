"""The operations a dense decoder needs. Each docstring is the contract; ``tgi_core.reference`` is its meaning.

Shape letters are those of ``tgi_core.contract.state``. Inputs may be overwritten only where a docstring says so.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from tgi_core.contract.experts import ExpertKernels
from tgi_core.contract.states import StateKernels
from tgi_core.sampling.params import Tier

if TYPE_CHECKING:
    from torch import Tensor

    from tgi_core.contract.state import DeviceState
    from tgi_core.sampling.rules import LogitsRule
    from tgi_core.sampling.rules.rows import RuleRows

PackedWeight = Any
"""What ``pack_linear`` returns and ``linear`` takes; only the kernels know its form."""

PreparedAttention = Any
"""What ``prepare_attention`` returns and ``attention`` takes; only the kernels know its form."""


class Division(NamedTuple):
    """How a linear may be divided among devices that compute one model together.

    Attributes:
        parts: rows of each weight that was merged into this one, where its outputs are divided: each part is, so that
            a device has its share of every one. () where outputs stay whole.
        inputs: its inputs are divided, and what the devices compute is summed.
    """

    parts: tuple[int, ...] = ()
    inputs: bool = False


WHOLE = Division()
"""Every device has the whole linear."""


class AttentionSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The attention of one layer.

    Attributes:
        num_heads, num_kv_heads, head_dim: H, K and D; H is a multiple of K.
        scale: multiplies the scores.
        window: tokens a query sees, itself included; None sees all.
        chunk: positions are cut into chunks of so many tokens, and a query sees its own chunk alone; the window is then
            as long. None for no chunks.
        latent_values: values are the first so many features of the keys, which the cache holds alone: [N, P, 1, K, D].
            What attention returns has as many. None where values are cached beside the keys. Source: DeepSeek-AI 2024.
        soft_cap: scores become ``soft_cap * tanh(scores / soft_cap)``; None leaves them.
        sinks: the softmax counts one more score in each head, which attends to nothing: a learned "sink".
        distances: how many distances a learned bias on the scores tells apart; larger ones count as the last. None for
            no such bias. Source: Raffel et al. 2020.
        cross: keys are those of an encoder's tokens. Each query is a row of its own with q_len 1, and sees all of them.
        alibi_slopes: for each head what is added to a score per token of distance, after scale and soft cap: ``slope *
            (position of the key - position of the query)``. None adds nothing. Source: Press et al. 2022.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    soft_cap: float | None = None
    alibi_slopes: tuple[float, ...] | None = None
    sinks: bool = False
    chunk: int | None = None
    latent_values: int | None = None
    distances: int | None = None
    cross: bool = False

    @property
    def features(self) -> frozenset[str]:
        """What is asked beyond causal attention with a window, by names for people.

        ``Kernels.supports`` compares it with what it knows, so that an addition to this contract is never ignored.
        """
        asked = {
            "a soft cap": self.soft_cap is not None,
            "a bias on distance": self.alibi_slopes is not None,
            "sinks": self.sinks,
            "chunks": self.chunk is not None,
            "latent values": self.latent_values is not None,
            "a learned bias on distance": self.distances is not None,
        }
        return frozenset(name for name, is_asked in asked.items() if is_asked)

    def cache_shape(self, blocks: int, block_size: int) -> tuple[int, ...]:
        """The shape of a layer's cache of ``blocks`` blocks: [N, P, 2, K, D], or [N, P, 1, K, D] with latent values."""
        return (blocks, block_size, 2 if self.latent_values is None else 1, self.num_kv_heads, self.head_dim)


class HeadNorms(NamedTuple):
    """RMS norms over each head of queries and keys; ``eps`` and ``offset`` as ``Kernels.rms_norm`` takes them."""

    q_norm_D: Tensor
    k_norm_D: Tensor
    eps: float
    offset: float


class FlatBlocks(NamedTuple):
    """The blocks of all rows of a decode in one list, of a group with a window only those that reach into it.

    A row that owns none pads the step: what attention returns for it is of no account, as long as it is finite.

    Attributes:
        blocks_F: int32; what pads the list is the scratch block.
        owners_F: int64, the row that the block belongs to, ascending; B where it pads.
        starts_F: int64, the position of the block's first token in its row; 0 where it pads.
    """

    blocks_F: Tensor
    owners_F: Tensor
    starts_F: Tensor


class AttentionBatch(NamedTuple):
    """One KV group's view of a step.

    Attributes:
        q_lens, kv_lens: per row, on the host: tokens computed, tokens in the cache after the step. In a captured step
            ``kv_lens`` are upper bounds; kernels that can be captured read the lengths on the device.
        num_decodes: how many leading rows have q_len 1.
        q_starts_B: int64 [B + 1] on the device: where each row's tokens begin in the T axis.
        kv_lens_B: int32 on the device.
        block_tables_BM: int32, the rows' block tables of the group. Of a flat decode [B, 1]: the block that takes the
            row's new token.
        slot_mapping_T: int64, for each token ``block * P + offset`` in the group's caches.
        block_size: P.
        window: the group's window, None for full attention.
        flat: of a flat decode, the blocks that it looks at; only devices whose ``BucketRules`` ask for it get any.
    """

    q_lens: list[int]
    kv_lens: list[int]
    num_decodes: int
    q_starts_B: Tensor
    kv_lens_B: Tensor
    block_tables_BM: Tensor
    slot_mapping_T: Tensor
    block_size: int
    window: int | None
    flat: FlatBlocks | None = None


class DecodeInputs(NamedTuple):
    """What a step of decodes computes, one token a row, as the tables hold it.

    Attributes:
        ids_B: int32, the rows' last known tokens. positions_B: int64, their positions.
        kv_lens_B: int32, tokens in the cache after the step.
        block_tables: per KV group the rows' block tables, int32 [B, M]; columns past ``kv_lens`` hold anything.
        slot_mappings: per KV group where keys and values go, int64 [B].
    """

    ids_B: Tensor
    positions_B: Tensor
    kv_lens_B: Tensor
    block_tables: tuple[Tensor, ...]
    slot_mappings: tuple[Tensor, ...]


class SampleInputs(NamedTuple):
    """Per row that samples: its parameters. With the greedy tier only ``slots`` is per row.

    What follows ``tier`` is for the full tier alone.

    Attributes:
        slots_B: int64, rows of the device tables.
        positions_B: int32, index of the new token among the row's output, from 0: the counter of the noise.
        temperature_B, top_p_B: float32.
        top_k_B: int32. do_sample_B: bool. seed_B: int64. choice_B: int32.
        tier: the work the step needs.
        rules: what changes scores before the temperature, in the order it runs; only rules that some row needs.
        cuts: what cuts the distribution after top-p, likewise.
        rule_rows: what rules and cuts read.
        whole_rows_R: int64, indexes of the rows whose whole distribution is needed, because they are cut after top-p
            or report more than the chosen token's log-probability after the rules. None when there is no such row.
        cuts_top: whether top-k or top-p cuts anything off, in any row.
        top_n: the most alternatives that a row asks for.
        raw_logprobs_B: bool, rows that report the model's own log-probabilities.
        raw_logits_BV: the logits before token masks, where such rows are in the step; else None.
    """

    slots_B: Tensor
    positions_B: Tensor
    temperature_B: Tensor
    top_p_B: Tensor
    top_k_B: Tensor
    do_sample_B: Tensor
    seed_B: Tensor
    choice_B: Tensor
    tier: Tier
    rules: tuple[LogitsRule, ...] = ()
    cuts: tuple[LogitsRule, ...] = ()
    rule_rows: RuleRows | None = None
    whole_rows_R: Tensor | None = None
    cuts_top: bool = True
    top_n: int = 0
    raw_logprobs_B: Tensor | None = None
    raw_logits_BV: Tensor | None = None

    def take(self, rows_R: Tensor) -> SampleInputs:
        """The inputs of some rows, int64, without ``whole_rows``."""

        def pick(column_B: Tensor) -> Tensor:
            return column_B.index_select(0, rows_R)

        return self._replace(
            slots_B=pick(self.slots_B),
            positions_B=pick(self.positions_B),
            temperature_B=pick(self.temperature_B),
            top_p_B=pick(self.top_p_B),
            top_k_B=pick(self.top_k_B),
            do_sample_B=pick(self.do_sample_B),
            seed_B=pick(self.seed_B),
            choice_B=pick(self.choice_B),
            rule_rows=None if self.rule_rows is None else self.rule_rows.take(rows_R),
            whole_rows_R=None,
            raw_logprobs_B=None if self.raw_logprobs_B is None else pick(self.raw_logprobs_B),
            raw_logits_BV=None if self.raw_logits_BV is None else pick(self.raw_logits_BV),
        )


class Sampled(NamedTuple):
    """What was chosen.

    Attributes:
        ids_B: int64, the new tokens.
        logprobs_B: float32, their log-probabilities.
        top_ids_RN, top_logprobs_RN: int64 and float32, for each of ``SampleInputs.whole_rows_R`` its most likely
            tokens, best first, of equal ones the smaller id; N is twice ``top_n``, at most V. None if none were asked
            for.
    """

    ids_B: Tensor
    logprobs_B: Tensor
    top_ids_RN: Tensor | None = None
    top_logprobs_RN: Tensor | None = None


class Kernels(ExpertKernels, StateKernels):
    """One method an operation. A backend derives from ``tgi_core.reference.ReferenceKernels`` and overrides some."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know about how the operations run here, said at start; such as a missing fast path."""
        return ()

    def supports(self, operation: str, spec: AttentionSpec) -> bool:  # noqa: ARG002 - the default takes everything
        """Whether this object's own ``operation`` can do ``spec``. A "no" binds the reference, said at start."""
        return True

    def captures(self, tier: Tier) -> bool:
        """Whether ``sample`` of this tier can be captured: it copies nothing from the host and asks for no values."""
        return tier is Tier.GREEDY

    @abstractmethod
    def embedding(self, ids_T: Tensor, weight_VE: Tensor) -> Tensor:
        """Rows of the embedding table: [T] integers -> [T, E] in the table's dtype."""

    @abstractmethod
    def pack_linear(self, weight_NK: Tensor) -> PackedWeight:
        """Bring a dense [N, K] weight into the form ``linear`` is fastest on. Runs once, at load."""

    def pack_divided(self, weight_NK: Tensor, division: Division) -> PackedWeight:  # noqa: ARG002 - there is one device
        """``pack_linear`` for a weight that may be divided so; only kernels of several devices do it."""
        return self.pack_linear(weight_NK)

    @abstractmethod
    def linear(self, x_TK: Tensor, weight: PackedWeight, bias_N: Tensor | None) -> Tensor:
        """``x @ weight.T + bias``: [T, K] -> [T, N], accumulated in float32."""

    @abstractmethod
    def gated_linear(self, x_TK: Tensor, weight: PackedWeight, bias_N: Tensor | None, activation: str) -> Tensor:
        """``activation_mul(linear(x, weight, bias), activation)``: [T, K] -> [T, N / 2]."""

    @abstractmethod
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
        """Root mean square norm over the last axis, in float32, times ``weight + offset``; any leading shape.

        Source: Zhang and Sennrich 2019. ``offset`` is 1 for Gemma, whose checkpoints store ``weight - 1``; then the
        product is formed in float32 before rounding, as Gemma does; with offset 0 the normalised value is rounded
        to x's dtype before the product, as Llama does.
        """

    @abstractmethod
    def add_rms_norm(
        self, x_TE: Tensor, residual_TE: Tensor, weight_E: Tensor, eps: float, offset: float
    ) -> tuple[Tensor, Tensor]:
        """``residual + x`` and its ``rms_norm``: returns (normed, new residual). May overwrite both inputs."""

    @abstractmethod
    def layer_norm(self, x_TE: Tensor, weight_E: Tensor, bias_E: Tensor | None, eps: float) -> Tensor:
        """Layer norm over the last axis, in float32."""

    @abstractmethod
    def activation_mul(self, x_T2F: Tensor, activation: str) -> Tensor:
        """Gated activation: [T, 2F] -> [T, F], ``act(x[:, :F]) * x[:, F:]``; "silu", "gelu" or "gelu_tanh".

        Or "swiglu_clamped": both halves are cut to at most 7, the second also to at least -7, and the result is
        ``x * sigmoid(1.702 * x) * (y + 1)``. Source: the gpt-oss release.
        """

    @abstractmethod
    def activation(self, x_TF: Tensor, activation: str) -> Tensor:
        """``act(x)`` of an MLP without a gate: "silu", "gelu", "gelu_tanh", "relu" or "relu2", the square of "relu"."""

    @abstractmethod
    def rope(self, x_THD: Tensor, cos_TR: Tensor, sin_TR: Tensor) -> Tensor:
        """Rotary position embedding on the first 2R of D features, halves rotated ("neox" order).

        cos and sin are float32 with one row a token. Returns x's dtype; may overwrite x. Source: Su et al. 2021.
        """

    def cache_shape(self, spec: AttentionSpec, blocks: int, block_size: int) -> tuple[int, ...]:
        """The shape of a layer's cache; kernels that attend may lay it out as they like, blocks and tokens first.

        They also take caches of ``spec.cache_shape``, which operations are tested with.
        """
        return spec.cache_shape(blocks, block_size)

    @abstractmethod
    def write_kv(self, kv_TKD: tuple[Tensor, ...], cache_NP2KD: Tensor, slot_mapping_T: Tensor) -> None:
        """Store keys and values, or keys alone where values are latent, at ``slot_mapping``.

        Tokens that only pad a step point into the scratch block.
        """

    @abstractmethod
    def rope_write_kv(
        self,
        qkv_TX: Tensor,
        spec: AttentionSpec,
        rotary: tuple[Tensor, Tensor] | None,
        cache_NP2KD: Tensor,
        slot_mapping_T: Tensor,
    ) -> Tensor:
        """Rotate queries and keys of a merged projection and store keys and values.

        ``qkv`` is [T, (H + 2K) * D]: queries, keys, values. ``rotary`` is (cos, sin) as ``rope`` takes, or None.
        Returns q [T, H, D], laid out as the same kernels' ``attention`` takes it; may overwrite ``qkv``. Equals
        ``rope`` on q and k, then ``write_kv``.
        """

    @abstractmethod
    def norm_rope_write_kv(
        self,
        qkv_TX: Tensor,
        spec: AttentionSpec,
        rotary: tuple[Tensor, Tensor] | None,
        cache_NP2KD: Tensor,
        slot_mapping_T: Tensor,
        *,
        norms: HeadNorms,
    ) -> Tensor:
        """``rms_norm`` over every head of queries and keys, then ``rope_write_kv``; may overwrite ``qkv``."""

    @abstractmethod
    def prepare_attention(self, batch: AttentionBatch, spec: AttentionSpec) -> PreparedAttention:
        """What the layers of one KV group share in a step (masks, split plans). Once a step and group."""

    @abstractmethod
    def attention(
        self,
        q_THD: Tensor,
        cache_NP2KD: Tensor,
        prepared: PreparedAttention,
        spec: AttentionSpec,
        sinks_H: Tensor | None = None,
        *,
        distance_bias_HX: Tensor | None = None,
    ) -> Tensor:
        """Causal attention of a ragged batch over the paged cache: prefill, decode and mixed. Returns [T, H, D].

        Row b's queries are the last ``q_len`` of its ``kv_len`` positions; a query at position p sees keys at
        positions max(0, p - window + 1) to p. Scores and their softmax are float32. Cache entries past ``kv_len`` are
        stale but finite. ``sinks`` are the layer's, where ``spec.sinks``; source: Xiao et al. 2023. ``distance_bias``
        is added to the scores, where ``spec.distances``: column min(distance, X - 1) of the head.
        """

    @abstractmethod
    def apply_bitmask(self, logits_BV: Tensor, rows_R: Tensor, masks_RW: Tensor) -> Tensor:
        """Set logits of forbidden tokens to -inf. ``masks`` is int32 [R, ceil(V / 32)], bit t of row r allows token t.

        May overwrite ``logits``.
        """

    @abstractmethod
    def sample(self, logits_BV: Tensor, inputs: SampleInputs) -> Sampled:
        """Apply the sampling rules and choose; token masks are in the logits already.

        Order: ``inputs.rules``, temperature, top-k, top-p, ``inputs.cuts``, choice. Rows with ``do_sample`` false take
        the first of the largest scores after the rules and skip the rest. Sampling rows take the largest of score plus
        Gumbel noise from ``tgi_core.reference.noise``. Log-probabilities are those of the scores after all of it, or
        of ``raw_logits`` for rows with ``raw_logprobs``. A row's result does not depend on which other rows need more.
        """

    @abstractmethod
    def copy_blocks(self, cache_NP2KD: Tensor, sources_R: Tensor, targets_R: Tensor) -> None:
        """Copy whole blocks inside one cache."""

    @abstractmethod
    def advance_tables(self, tokens_SL: Tensor, lengths_S: Tensor, slots_B: Tensor, ids_B: Tensor) -> None:
        """Append each row's new token: ``tokens[slot, lengths[slot]] = id``, then ``lengths[slot] += 1``, in place.

        Rows that only pad a step name the scratch row, the last, whose length must be 1 before and stays 1.
        """

    @abstractmethod
    def decode_inputs(self, state: DeviceState, slots_B: Tensor) -> DecodeInputs:
        """Gather what a step of decodes computes: for each slot its last known token. ``slots`` is int64 [B].

        The launch depends on nothing but the number of rows, so that it can be captured.
        """
