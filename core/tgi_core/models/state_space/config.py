"""From ``config.json`` to the spec of a state space model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tgi_core.contract.states import DualSpec
from tgi_core.models.hf_config import MOST_LAYERS, HFConfig
from tgi_core.models.state_space.spec import ScanMixerSpec, StateSpaceSpec

_MOST_TAPS = 64

_SILU: Mapping[str, str] = {"silu": "silu", "swish": "silu"}
"""No model has another activation."""


def read_scan(config: HFConfig) -> StateSpaceSpec:
    """Mamba.

    Raises:
        StartupError: a key is missing, impossible, or asks for what is not supported.
    """
    return _read_scan(config, None)


def read_scan_with_norms(config: HFConfig) -> StateSpaceSpec:
    """Falcon Mamba: what the scan reads of a token is normed."""
    return _read_scan(config, config.positive("mixer_rms_eps", 1e-6))


def _read_scan(config: HFConfig, norm_eps: float | None) -> StateSpaceSpec:
    hidden_size = config.size("hidden_size")
    rank = math.ceil(hidden_size / 16)
    if config.has("time_step_rank") and config.get("time_step_rank", object) != "auto":
        rank = config.size("time_step_rank")
    mixer = ScanMixerSpec(state_size=config.size("state_size", 16), rank=rank, norm_eps=norm_eps)
    return _read(config, config.size("intermediate_size", _expanded(config)), mixer, tied=True)


def read_dual(config: HFConfig) -> StateSpaceSpec:
    """Mamba 2.

    Raises:
        StartupError: a key is missing, impossible, or asks for what is not supported.
    """
    num_heads, head_dim = config.size("num_heads", 128), config.size("head_dim", 64)
    num_groups = config.size("n_groups", 8)
    if num_heads % num_groups:
        raise config.refuse("n_groups", f"it does not divide the {num_heads} heads")
    inner_size = num_heads * head_dim
    if _expanded(config) != inner_size:
        reason = f"{num_heads} heads of {head_dim} features are not the {_expanded(config)} that the model expands to"
        raise config.refuse("num_heads", reason)
    mixer = DualSpec(
        num_heads=num_heads,
        head_dim=head_dim,
        num_groups=num_groups,
        state_size=config.size("state_size", 128),
        dt_limit=_step_limit(config),
    )
    return _read(config, inner_size, mixer, tied=False)


def _read(config: HFConfig, inner_size: int, mixer: ScanMixerSpec | DualSpec, *, tied: bool) -> StateSpaceSpec:
    if not config.get("rms_norm", bool, True):
        raise config.unsupported("rms_norm", "only RMS norms are known")
    config.activation("hidden_act", known=_SILU, default="silu")
    return StateSpaceSpec(
        vocab_size=config.size("vocab_size"),
        hidden_size=config.size("hidden_size"),
        num_layers=config.size("num_hidden_layers", most=MOST_LAYERS),
        inner_size=inner_size,
        taps=config.size("conv_kernel", 4, most=_MOST_TAPS),
        mixer=mixer,
        norm_eps=config.positive("layer_norm_epsilon", 1e-5),
        linear_bias=config.get("use_bias", bool, False),
        conv_bias=config.get("use_conv_bias", bool, True),
        float_residual=config.get("residual_in_fp32", bool, True),
        tied_head=config.get("tie_word_embeddings", bool, tied),
    )


def _expanded(config: HFConfig) -> int:
    return int(config.positive("expand", 2.0) * config.size("hidden_size"))


def _step_limit(config: HFConfig) -> tuple[float, float]:
    """The least and the largest step."""
    limits = [_number(value) for value in config.get("time_step_limit", list[Any], [0.0, math.inf])]
    if len(limits) != 2 or not 0 <= limits[0] < limits[1]:
        raise config.refuse("time_step_limit", "it must be two numbers from 0 up, the smaller one first")
    return limits[0], limits[1]


def _number(value: Any) -> float:
    """A number, which stands as itself or, where JSON has no word for it, as ``{"__float__": "Infinity"}``."""
    try:
        return float(value["__float__"] if isinstance(value, dict) else value)
    except (KeyError, TypeError, ValueError):
        return math.nan
