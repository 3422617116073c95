"""What transformers 4.55 and 5 spell differently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import LlamaConfig, PretrainedConfig

_HAS_ROPE_PARAMETERS = hasattr(LlamaConfig(), "rope_parameters")


def rope_settings(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a configuration's class for version 5's ``rope_parameters``, of one or of both layer types."""
    if _HAS_ROPE_PARAMETERS:
        return {"rope_parameters": dict(parameters)}
    scaling = dict(parameters.get("full_attention", parameters))
    settings = {"rope_theta": scaling.pop("rope_theta")}
    if "partial_rotary_factor" in scaling:
        settings["partial_rotary_factor"] = scaling.pop("partial_rotary_factor")
    if scaling.get("rope_type", "default") != "default":
        settings["rope_scaling"] = scaling
    if "sliding_attention" in parameters:
        settings["rope_local_base_freq"] = parameters["sliding_attention"]["rope_theta"]
    return settings


def rope_theta(config: PretrainedConfig) -> float:
    """The base of the rotary embedding."""
    parameters = config.rope_parameters if _HAS_ROPE_PARAMETERS else config.to_dict()
    return float(parameters["rope_theta"])
