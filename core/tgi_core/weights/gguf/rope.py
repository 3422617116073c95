"""Rope scaling of a GGUF file as Hugging Face's ``rope_scaling``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gguf.quants import dequantize
from numpy.typing import NDArray

from tgi_core.weights.gguf.metadata import refuse
from tgi_core.weights.gguf.reader import GgufFile

# Llama 3.1 and 3.2 differ in the factor only; llama.cpp stores the resulting factor of each frequency.
_LLAMA3_LOW, _LLAMA3_HIGH, _LLAMA3_CONTEXT = 1.0, 4.0, 8192
_SERVE_ORIGINAL = "Serve the original model in safetensors instead."


def rope_scaling(file: GgufFile, theta: float, head_dim: int) -> dict[str, Any] | None:
    """The ``rope_scaling`` entry, or None for plain rope.

    Raises:
        StartupError: the scaling is of a kind that is not supported.
    """
    metadata = file.metadata
    if "rope_freqs.weight" in file.tensors:
        return _llama3_scaling(file, theta, head_dim)
    if "rope_factors_long.weight" in file.tensors:
        return _long_rope(file)
    kind = metadata.find_of_model("rope.scaling.type", str)
    if kind is None or kind == "none":
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": metadata.need_of_model("rope.scaling.factor", float)}
    if kind == "yarn":
        scaling: dict[str, Any] = {"rope_type": "yarn", "factor": metadata.need_of_model("rope.scaling.factor", float)}
        context = metadata.find_of_model("rope.scaling.original_context_length", int)
        if context is not None:
            scaling["original_max_position_embeddings"] = context
        for name, key in (("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")):
            beta = metadata.find_of_model(f"rope.scaling.{key}", float)
            if beta is not None:
                scaling[name] = beta
        return scaling
    raise refuse(metadata.path, f"scales rope by `{kind}`; known are linear, yarn and llama3", _SERVE_ORIGINAL)


def llama3_factors(theta: float, head_dim: int, factor: float) -> NDArray[np.float64]:
    """By how much Llama 3.1 divides each rope frequency: [head_dim / 2]. Source: Llama 3.1's model card code."""
    wavelengths = 2 * math.pi * theta ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    smooth = (_LLAMA3_CONTEXT / wavelengths - _LLAMA3_LOW) / (_LLAMA3_HIGH - _LLAMA3_LOW)
    smooth = np.clip(smooth, 0.0, 1.0)
    return np.asarray(1.0 / ((1.0 - smooth) / factor + smooth))


def _long_rope(file: GgufFile) -> dict[str, Any]:
    scaling: dict[str, Any] = {"rope_type": "longrope", "type": "longrope"}
    for kind in ("long", "short"):
        name = f"rope_factors_{kind}.weight"
        if name not in file.tensors:
            raise refuse(file.path, f"lacks the tensor `{name}`")
        factors = dequantize(file.raw_rows(file.tensors[name]).reshape(1, -1), file.tensors[name].type).reshape(-1)
        scaling[f"{kind}_factor"] = [float(str(factor)) for factor in factors]
    return scaling


def _llama3_scaling(file: GgufFile, theta: float, head_dim: int) -> dict[str, Any]:
    tensor = file.tensors["rope_freqs.weight"]
    stored = dequantize(file.raw_rows(tensor).reshape(1, -1), tensor.type).reshape(-1)
    factor = round(float(stored.max()), 4)
    expected = llama3_factors(theta, head_dim, factor)
    if stored.shape != expected.shape or not np.allclose(stored, expected, rtol=1e-3):
        raise refuse(file.path, "has rope factors that are not Llama 3's", _SERVE_ORIGINAL)
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": _LLAMA3_LOW,
        "high_freq_factor": _LLAMA3_HIGH,
        "original_max_position_embeddings": _LLAMA3_CONTEXT,
    }
