"""The demo model as a bf16 GGUF file, so that llama-server computes with the very weights that we serve."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np


def write_bf16_gguf(source: Path, target: Path) -> None:
    """Dequantise every tensor of ``source`` to float32 and round it to the nearest bf16, ties to even.

    Matrices are stored as bf16. Vectors (norms) stay float32, the only type llama.cpp takes for them, with values
    that bf16 can hold. Metadata and tokenizer are copied.
    """
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields[gguf.Keys.General.ARCHITECTURE].contents())
    for field in reader.fields.values():
        if field.name == gguf.Keys.General.FILE_TYPE:
            writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
        elif field.name != gguf.Keys.General.ARCHITECTURE and not field.name.startswith("GGUF."):
            item_type = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(field.name, field.contents(), field.types[0], item_type)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        bf16 = gguf.quantize(values, gguf.GGMLQuantizationType.BF16)
        if values.ndim == 1:
            vector: np.ndarray = gguf.dequantize(bf16, gguf.GGMLQuantizationType.BF16)
            writer.add_tensor(tensor.name, vector)
        else:
            writer.add_tensor(tensor.name, bf16, raw_dtype=gguf.GGMLQuantizationType.BF16)
    partial = target.with_suffix(".partial")
    writer.write_header_to_file(partial)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(target)
