"""A state space model as data."""

from __future__ import annotations

import msgspec

from tgi_core.contract.states import DualSpec


class ScanMixerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A mixer that scans channel by channel, of Mamba.

    Attributes:
        state_size: Z.
        rank: features that steps are projected from.
        norm_eps: of the RMS norms, without weight, of ``b``, ``c`` and what steps are projected from; None for none.
    """

    state_size: int
    rank: int
    norm_eps: float | None = None


class StateSpaceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One model.

    Attributes:
        vocab_size, hidden_size, num_layers: V, E and how many layers there are.
        inner_size: features inside a mixer.
        taps: W, of the convolution before the recurrence.
        mixer: the recurrence.
        norm_eps: of every norm that the mixer does not name.
        linear_bias, conv_bias: which of the projections into and out of a mixer, and the convolution, have one.
        float_residual: the residual stream is float32, whatever the type of the weights.
        tied_head: the head is the embedding table.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    inner_size: int
    taps: int
    mixer: ScanMixerSpec | DualSpec
    norm_eps: float
    linear_bias: bool
    conv_bias: bool
    float_residual: bool
    tied_head: bool

    @property
    def conv_width(self) -> int:
        """Features that the convolution runs over."""
        return self.inner_size + (2 * self.mixer.group_width if isinstance(self.mixer, DualSpec) else 0)

    @property
    def state_shape(self) -> tuple[int, ...]:
        """What the recurrence of a layer keeps of a slot: [C, Z] or [H, D, Z]."""
        if isinstance(self.mixer, DualSpec):
            return (self.mixer.num_heads, self.mixer.head_dim, self.mixer.state_size)
        return (self.inner_size, self.mixer.state_size)
