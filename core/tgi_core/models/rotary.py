"""Tables of cos and sin for the rotary position embeddings."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tgi_core.models.ropes import LinearScaling, Llama3Scaling, LongRopeScaling, RopeSpec, YarnScaling


def rotary_table(spec: RopeSpec, num_positions: int, device: torch.device) -> Tensor:
    """cos and sin side by side, float32 [num_positions, 2R], for ``Kernels.rope``.

    A table and not a formula in each step: one gather serves all layers, and a position's values cannot depend on
    which other positions are computed with it. So a model that stretches only long contexts is stretched when
    ``num_positions``, the longest that is served, is one.
    """
    inv_freq_R, factor = _inverse_frequencies(spec, num_positions)
    angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * inv_freq_R
    return torch.cat((angles.cos() * factor, angles.sin() * factor), dim=-1).to(device)


def _inverse_frequencies(spec: RopeSpec, num_positions: int) -> tuple[Tensor, float]:
    """The angle a position adds to each pair of features, and a factor for cos and sin."""
    exponents_R = torch.arange(0, spec.rotary_dim, 2, dtype=torch.float32) / spec.rotary_dim
    inv_freq_R = 1.0 / spec.theta**exponents_R
    match spec.scaling:
        case None:
            return inv_freq_R, 1.0
        case LinearScaling(factor):
            return inv_freq_R / factor, 1.0
        case Llama3Scaling():
            return _llama3(inv_freq_R, spec.scaling), 1.0
        case LongRopeScaling(short_factors, long_factors, short_attention_factor, long_attention_factor):
            if num_positions > spec.scaling.original_max_positions:
                return inv_freq_R / torch.tensor(long_factors), long_attention_factor
            return inv_freq_R / torch.tensor(short_factors), short_attention_factor
        case YarnScaling():
            return _yarn(inv_freq_R, spec, spec.scaling), spec.scaling.attention_factor


def _llama3(inv_freq_R: Tensor, scaling: Llama3Scaling) -> Tensor:
    # How often a pair turns within the original context decides how much it is stretched.
    turns_R = scaling.original_max_positions * inv_freq_R / (2 * math.pi)
    blend_R = (turns_R - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend_R = blend_R.clamp(0, 1)
    return inv_freq_R * ((1 - blend_R) / scaling.factor + blend_R)


def _yarn(inv_freq_R: Tensor, spec: RopeSpec, scaling: YarnScaling) -> Tensor:
    def pair_that_turns(turns: float) -> float:
        """The (fractional) index of the pair that makes so many turns within the original context."""
        wavelength = scaling.original_max_positions / (turns * 2 * math.pi)
        return spec.rotary_dim * math.log(wavelength) / (2 * math.log(spec.theta))

    low, high = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, spec.rotary_dim - 1)
    width = high - low or 0.001  # two bounds that coincide make a step, not a division by zero
    stretch_R = ((torch.arange(len(inv_freq_R), dtype=torch.float32) - low) / width).clamp(0, 1)
    return inv_freq_R / scaling.factor * stretch_R + inv_freq_R * (1 - stretch_R)
