"""The operations of layers that keep a state of each slot; ``tgi_core.reference.states`` is their meaning.

Such a state has one size whatever the slot's length, and lies in ``DeviceState.states``: [S + 1, ...], the last row for
padding. Every operation reads the states of its rows' slots and leaves them as they are after the rows' last tokens.

Shape letters beside the usual ones: C channels, W taps of a convolution, J = W - 1 inputs that it keeps, U features of
a value, G groups of heads, Z numbers in the state of a channel or of a feature.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from torch import Tensor


class StepRows(NamedTuple):
    """Whose tokens a step computes: row b has tokens ``q_starts[b]`` to ``q_starts[b + 1]`` of the T axis.

    Rows that only pad a step name the scratch slot, several of them if need be, with one token each; what becomes of
    its state is of no account, as long as the rows beside them do not feel it.

    Attributes:
        slots_B: int64, each row's slot.
        q_starts_B: int64 [B + 1].
        first_positions_B: int64, the position of each row's first token. Where it is 0 the slot's states hold what
            another request left, perhaps no numbers at all: the row starts from zeros.
        q_lens: tokens of each row, on the host.
        num_decodes: how many leading rows have one token.
        slots: ``slots_B`` on the host; empty in a recorded step, which does not know them.
    """

    slots_B: Tensor
    q_starts_B: Tensor
    first_positions_B: Tensor
    q_lens: Sequence[int]
    num_decodes: int
    slots: Sequence[int]


class ConvWeights(NamedTuple):
    """A depthwise convolution: ``weight`` [C, W], whose last tap is the token itself, and a bias."""

    weight_CW: Tensor
    bias_C: Tensor | None = None


class DeltaRuleSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The heads of a gated delta rule.

    Attributes:
        num_heads: H, of values and gates.
        num_key_heads: K, of queries and keys; each serves H / K heads that lie side by side.
        key_dim, value_dim: D and U.
    """

    num_heads: int
    num_key_heads: int
    key_dim: int
    value_dim: int

    @property
    def key_width(self) -> int:
        """Features of all queries, and of all keys."""
        return self.num_key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        """Features of all values."""
        return self.num_heads * self.value_dim


class DeltaGates(NamedTuple):
    """What opens and closes the heads: of each token, ``a`` and ``b`` [T, H]; of the layer, float32 [H] each.

    A head forgets by ``exp(-exp(a_log) * softplus(a + dt_bias))`` and writes with strength ``sigmoid(b)``.
    """

    a_TH: Tensor
    b_TH: Tensor
    a_log_H: Tensor
    dt_bias_H: Tensor


class ScanInputs(NamedTuple):
    """What a selective scan reads of each token: ``x``, ``dt`` and ``gate`` [T, C], ``b`` and ``c`` [T, Z]."""

    x_TC: Tensor
    dt_TC: Tensor
    b_TZ: Tensor
    c_TZ: Tensor
    gate_TC: Tensor


class ScanWeights(NamedTuple):
    """The channels of a selective scan, float32: ``a``, below 0, [C, Z], ``d`` and ``dt_bias`` [C]."""

    a_CZ: Tensor
    d_C: Tensor
    dt_bias_C: Tensor


class DualSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The heads of a state space dual.

    Attributes:
        num_heads, head_dim: H and D.
        num_groups: G, of what writes and reads states; each serves H / G heads that lie side by side.
        state_size: Z.
        dt_limit: the least and the largest step.
    """

    num_heads: int
    head_dim: int
    num_groups: int
    state_size: int
    dt_limit: tuple[float, float]

    @property
    def inner_width(self) -> int:
        """Features of all heads."""
        return self.num_heads * self.head_dim

    @property
    def group_width(self) -> int:
        """Features of all that writes states, and of all that reads them."""
        return self.num_groups * self.state_size


class DualInputs(NamedTuple):
    """What a state space dual reads of each token.

    ``xbc`` [T, C] holds x [H, D], b [G, Z] and c [G, Z], in that order; ``dt`` is [T, H].
    """

    xbc_TC: Tensor
    dt_TH: Tensor


class DualWeights(NamedTuple):
    """The heads of a state space dual, float32 [H] each; ``a`` is below 0."""

    a_H: Tensor
    d_H: Tensor
    dt_bias_H: Tensor


class StateKernels(ABC):
    """The part of ``Kernels`` that only layers with slot states need."""

    @property
    def captures_states(self) -> bool:
        """Whether these can be captured for rows that decode: no copies from the host, no values asked for."""
        return False

    @abstractmethod
    def causal_conv(
        self, x_TC: Tensor, weights: ConvWeights, state_SJC: Tensor, rows: StepRows, activation: str | None
    ) -> Tensor:
        """Convolve each row's tokens along the row, each with the J before it: [T, C] -> [T, C], summed in float32.

        ``state`` holds the last J inputs of each slot in x's type, the latest last; before a slot's first token they
        are zeros. ``activation`` is one that ``Kernels.activation`` names, or None. ``x`` may be columns of something
        wider.
        """

    @abstractmethod
    def gated_delta_rule(
        self, qkv_TC: Tensor, gates: DeltaGates, state_SHDU: Tensor, rows: StepRows, spec: DeltaRuleSpec
    ) -> Tensor:
        """A memory of each head that is read by queries and corrected by keys and values: returns [T, H, U].

        ``qkv`` holds queries and keys of K heads and values of H, in that order. Queries and keys are scaled to length
        1, ``x / sqrt(sum(x * x) + 1e-6)``, queries by ``D ** -0.5`` too. For each token the state S [D, U] of a head,
        float32, becomes ``forget * S``, then ``S + k (v - k S) * write``, and its output is ``q S``: all in float32,
        then in qkv's type. ``qkv`` and the gates may be columns of something wider.

        However a sequence is cut into rows of several steps, outputs and state agree to float32 rounding. Sources: Yang
        et al. 2024, "Gated Delta Networks"; for the form over chunks of tokens Yang et al. 2024, "Parallelizing Linear
        Transformers with the Delta Rule over Sequence Length".
        """

    @abstractmethod
    def selective_scan(self, inputs: ScanInputs, weights: ScanWeights, state_SCZ: Tensor, rows: StepRows) -> Tensor:
        """A linear recurrence of each channel whose steps depend on the token: returns [T, C].

        With ``step = softplus(dt + dt_bias)`` the state S [Z] of a channel, float32, becomes ``exp(step * a) * S + step
        * x * b``, and its output is ``(c S + d * x) * silu(gate)``: all in float32, then in x's type. Inputs may be
        columns of something wider.

        However a sequence is cut into rows of several steps, outputs and state agree to float32 rounding. Source: Gu
        and Dao 2023, "Mamba".
        """

    @abstractmethod
    def state_space_dual(
        self, inputs: DualInputs, weights: DualWeights, state_SHDZ: Tensor, rows: StepRows, spec: DualSpec
    ) -> Tensor:
        """A linear recurrence of each head with one rate for all its features: returns [T, H, D].

        With ``step = softplus(dt + dt_bias)``, cut to ``spec.dt_limit``, the state S [D, Z] of a head, float32, becomes
        ``exp(step * a) * S + step * x b``, the product being an outer one, and its output is ``S c + d * x``: all in
        float32, then in xbc's type. Inputs may be columns of something wider.

        However a sequence is cut into rows of several steps, outputs and state agree to float32 rounding. Source, of
        the form over chunks of tokens too: Dao and Gu 2024, "Transformers are SSMs".
        """
