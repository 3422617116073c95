"""Converts a GGUF file into a folder in Hugging Face's layout, once: the result is cached."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from tgi_core.errors import ExitCode, StartupError
from tgi_core.weights.bf16 import round_to_bf16
from tgi_core.weights.gguf.config import generation_config, model_config
from tgi_core.weights.gguf.reader import GgufFile
from tgi_core.weights.gguf.tensors import TensorPlan, plan_tensors, restore_rows
from tgi_core.weights.gguf.tokenizer import build_tokenizer, tokenizer_config
from tgi_core.weights.linked import make_once
from tgi_core.weights.progress import Progress, no_progress
from tgi_core.weights.safetensors_writer import TensorEntry, write_safetensors

CONVERTER_VERSION = 2
"""Part of the cache key: raise it whenever the converted folder would come out differently."""

_CHUNK_VALUES = 1 << 20  # a few MB of float32 stay in the CPU's cache


def convert_gguf(gguf_path: Path, cache_dir: Path, progress: Progress = no_progress, *, weights: bool = True) -> Path:
    """The converted folder of ``gguf_path`` below ``cache_dir``; made on the first call, found on later ones.

    Weights become bfloat16, or stay float32 in a file that has nothing else; without ``weights`` the folder may lack
    them. Processes may convert the same file at once: each works in a folder of its own, the first one to finish
    provides the result.

    Raises:
        StartupError: the file is damaged or uses what is not supported, or the cache cannot be written.
    """
    try:
        target = cache_dir / _cache_name(gguf_path)
    except OSError as error:
        raise StartupError(
            f"The GGUF file {gguf_path} cannot be read: {error}.", "Check the path and its permissions.", ExitCode.MODEL
        ) from error
    if not target.is_dir() and not weights:
        target = target.with_name(f"{target.name}-description")
    if target.is_dir():
        return target
    file = GgufFile(gguf_path)
    make_once(target, lambda folder: _write_folder(file, folder, progress, weights))
    return target


def _cache_name(gguf_path: Path) -> str:
    stat = gguf_path.stat()
    key = f"{gguf_path.name}|{stat.st_size}|{stat.st_mtime_ns}|{CONVERTER_VERSION}"
    return f"{gguf_path.stem}-{hashlib.blake2b(key.encode(), digest_size=8).hexdigest()}"


def _write_folder(file: GgufFile, folder: Path, progress: Progress, weights: bool) -> None:
    plans = plan_tensors(file)
    keep_float32 = all(plan.source.type == GGMLQuantizationType.F32 for plan in plans)
    _write_json(folder / "config.json", model_config(file, "float32" if keep_float32 else "bfloat16"))
    _write_json(folder / "generation_config.json", generation_config(file.metadata))
    _write_json(folder / "tokenizer_config.json", tokenizer_config(file.metadata))
    (folder / "tokenizer.json").write_text(build_tokenizer(file.metadata).to_str(), encoding="utf-8")
    if not weights:
        return
    dtype = "F32" if keep_float32 else "BF16"
    entries = [TensorEntry(plan.name, dtype, plan.shape) for plan in plans]
    total_bytes = sum(entry.size_bytes for entry in entries)

    def chunks() -> Iterator[NDArray[Any]]:
        done_bytes = 0
        for plan in plans:
            for values in _values(file, plan):
                chunk = values if keep_float32 else round_to_bf16(values)
                yield chunk
                done_bytes += chunk.nbytes
                progress(f"Converting {file.path.name}", done_bytes, total_bytes)

    write_safetensors(folder / "model.safetensors", entries, chunks())


def _values(file: GgufFile, plan: TensorPlan) -> Iterator[NDArray[np.float32]]:
    """The tensor's numbers in row-major order, float32, in pieces."""
    rows = file.raw_rows(plan.source)
    if plan.interleaved_heads:
        rows = restore_rows(rows, plan.interleaved_heads)
    if plan.expert is not None:
        rows = rows.reshape(plan.source.shape[0], -1, rows.shape[1])[plan.expert]
    values_per_row = plan.source.shape[-1] if len(plan.source.shape) > 1 else 1
    step = max(1, _CHUNK_VALUES // values_per_row)
    for start in range(0, len(rows), step):
        # As one long row: the package's functions loop in Python over groups of rows.
        values = dequantize(np.ascontiguousarray(rows[start : start + step]).reshape(1, -1), plan.source.type)[0]
        yield values - np.float32(plan.norm_offset) if plan.norm_offset else values


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")
