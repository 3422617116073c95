"""Small GGUF files made with the gguf package's writer, the way llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from tgi_core.weights.gguf.metadata import GgufMetadata, MetadataValue

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

Write = Callable[[gguf.GGUFWriter], None]


def byte_alphabet() -> list[str]:
    """GPT-2's 256 characters that stand for bytes."""
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


def add_byte_level_tokenizer(writer: gguf.GGUFWriter, vocab_size: int = 320, pre: str | None = "smollm") -> None:
    """A byte-level tokenizer with three control tokens, a few merges and fillers up to ``vocab_size``."""
    tokens = ["<s>", "</s>", "<|im_end|>", *byte_alphabet(), "he", "ll", "hell", "hello"]
    types = [CONTROL] * 3 + [NORMAL] * (len(tokens) - 3)
    fillers = vocab_size - len(tokens)
    writer.add_tokenizer_model("gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens + [f"[PAD{len(tokens) + number}]" for number in range(fillers)])
    writer.add_token_types(types + [UNUSED] * fillers)
    writer.add_token_merges(["h e", "l l", "he ll", "hell o"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template("{{ messages }}<|im_end|>")


def add_decoder(
    writer: gguf.GGUFWriter,
    *,
    layers: int = 1,
    hidden_size: int = 32,
    heads: int = 2,
    kv_heads: int = 1,
    intermediate_size: int = 48,
) -> None:
    """The metadata every decoder has."""
    writer.add_block_count(layers)
    writer.add_context_length(128)
    writer.add_embedding_length(hidden_size)
    writer.add_feed_forward_length(intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(50_000.0)


def decoder_tensors(vocab_size: int = 320) -> dict[str, NDArray[np.float32]]:
    """llama.cpp's tensors of one llama layer with the sizes of ``add_decoder``."""
    shapes = {
        "token_embd.weight": (vocab_size, 32),
        "output_norm.weight": (32,),
        "blk.0.attn_norm.weight": (32,),
        "blk.0.attn_q.weight": (32, 32),
        "blk.0.attn_k.weight": (16, 32),
        "blk.0.attn_v.weight": (16, 32),
        "blk.0.attn_output.weight": (32, 32),
        "blk.0.ffn_norm.weight": (32,),
        "blk.0.ffn_gate.weight": (48, 32),
        "blk.0.ffn_up.weight": (48, 32),
        "blk.0.ffn_down.weight": (32, 48),
    }
    generator = np.random.default_rng(0)
    return {name: generator.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def write_gguf(
    path: Path,
    architecture: str,
    tensors: Mapping[str, NDArray[Any]],
    steps: Sequence[Write] = (add_decoder, add_byte_level_tokenizer),
    types: Mapping[str, gguf.GGMLQuantizationType] | None = None,
    *,
    raw_types: Mapping[str, gguf.GGMLQuantizationType] | None = None,
) -> Path:
    """Write a file with the metadata of ``steps``; tensors named in ``types`` are quantized.

    Those named in ``raw_types`` are bytes of that type already.
    """
    writer = gguf.GGUFWriter(path, architecture)
    for step in steps:
        step(writer)
    for name, values in tensors.items():
        kind = (types or {}).get(name)
        if raw_types is not None and name in raw_types:
            writer.add_tensor(name, values, raw_dtype=raw_types[name])
        elif kind is None:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_llama(path: Path, **tensors: NDArray[Any]) -> Path:
    """A complete little llama file in float32."""
    return write_gguf(path, "llama", decoder_tensors() | tensors)


def metadata_of(architecture: str = "llama", **values: MetadataValue) -> GgufMetadata:
    """Metadata without a file; ``__`` in a name stands for a dot."""
    named = {name.replace("__", "."): value for name, value in values.items()}
    return GgufMetadata(Path("model.gguf"), {"general.architecture": architecture, **named})
