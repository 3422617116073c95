"""What ``config.json`` says of quantized weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tgi_core.errors import ExitCode, StartupError
from tgi_core.models.hf_config import HFConfig
from tgi_core.weights.dequantized import Fp8, Mxfp4, Quantization

_FIX = "Serve a version of the model in fp8 or mxfp4, a GGUF file of it, or one that is not quantized."
_USUAL_BLOCK = (128, 128)
_MODELOPT_FILE = "hf_quant_config.json"
"""Where older releases of NVIDIA's Model Optimizer say what newer ones say in ``config.json``."""


class _Config(msgspec.Struct):
    """The keys of a ``quantization_config`` that change what the stored numbers mean."""

    quant_method: str = ""
    weight_block_size: tuple[int, int] | None = None
    format: str = ""
    config_groups: dict[str, _Group] = {}
    quant_algo: str = ""


class _Weights(msgspec.Struct):
    num_bits: int
    type: str = "int"
    strategy: str = "tensor"
    symmetric: bool = True
    block_structure: tuple[int, int] | None = None


class _Group(msgspec.Struct):
    weights: _Weights | None = None


def find_quantization(model_dir: Path, config: HFConfig) -> Quantization | None:
    """How the weights in ``model_dir`` are quantized; None if they are not.

    Raises:
        StartupError: they are quantized in a way that is not known here; the message names it.
    """
    where, values = _find(model_dir, config)
    if values is None:
        return None
    try:
        read = msgspec.convert(values, _Config)
    except msgspec.ValidationError as error:
        raise _refuse(f"{where} cannot be read: {error}") from error
    match read.quant_method:
        case "fp8":
            return Fp8(_block(read.weight_block_size, where))
        case "fbgemm_fp8":
            return Fp8(None)
        case "modelopt" if read.quant_algo == "FP8":
            return Fp8(None)
        case "compressed-tensors" if read.format == "float-quantized":
            return _compressed(read, where)
        case "mxfp4":
            return Mxfp4()
    method = " ".join(part for part in (read.quant_method, read.quant_algo, read.format) if part)
    told = f"by `{method}`" if method else "and does not name the method"
    raise _refuse(f"{where} says that the weights are quantized {told}, which cannot be loaded yet")


def _find(model_dir: Path, config: HFConfig) -> tuple[str, Mapping[str, Any] | None]:
    for key in ("quantization_config", "compression_config"):
        holders = (config, config.section("text_config", {})) if config.has("text_config") else (config,)
        for holder in holders:
            if holder.has(key):
                return f"`{key}` in config.json", holder.get(key, dict[str, Any])
    path = model_dir / _MODELOPT_FILE
    if not path.is_file():
        return "", None
    try:
        content = msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, Any]])
    except (OSError, msgspec.MsgspecError) as error:
        raise StartupError(
            f"{path} cannot be read: {error}.", "Download or copy the model again.", ExitCode.MODEL
        ) from error
    return _MODELOPT_FILE, {"quant_method": "modelopt", **content.get("quantization", {})}


def _compressed(read: _Config, where: str) -> Quantization:
    """The format of llm-compressor."""
    weights = [group.weights for group in read.config_groups.values() if group.weights is not None]
    for each in weights:
        if each.num_bits != 8 or each.type != "float" or not each.symmetric:
            raise _refuse(f"{where} says that weights are quantized to {each.num_bits} bits of type `{each.type}`")
        if each.strategy not in ("tensor", "channel", "block"):
            raise _refuse(f"{where} says that weights have a scale for each `{each.strategy}`")
    blocks = {(each.block_structure or _USUAL_BLOCK) if each.strategy == "block" else None for each in weights}
    if len(blocks) != 1:
        raise _refuse(f"{where} says that weights have scales of {len(blocks)} kinds")
    return Fp8(_block(blocks.pop(), where))


def _block(size: tuple[int, int] | None, where: str) -> tuple[int, int] | None:
    if size is not None and min(size) < 1:
        raise _refuse(f"{where} says that weights have a scale for each block of {list(size)}")
    return size


def _refuse(cause: str) -> StartupError:
    return StartupError(f"{cause}.", _FIX, ExitCode.MODEL)
