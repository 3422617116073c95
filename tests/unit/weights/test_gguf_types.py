"""Every type of tensor that the gguf package decodes comes out as the package decodes it."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.unit.weights.gguf_files import add_byte_level_tokenizer, add_decoder, write_gguf
from tgi_core.weights.checkpoint import Checkpoint
from tgi_core.weights.gguf import convert_gguf

HIDDEN, VOCAB = 512, 320
LEGACY_AND_K = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"}


def decodable() -> list[str]:
    names = []
    for kind, (_, block_bytes) in gguf.GGML_QUANT_SIZES.items():
        try:
            gguf.quants.dequantize(np.zeros((1, block_bytes), np.uint8), kind)
        except NotImplementedError:
            continue
        names.append(kind.name)
    return names


def test_legacy_and_k_types_are_among_them() -> None:
    assert set(decodable()) >= LEGACY_AND_K | {"F32", "F16", "BF16"}


def tensors(embedding: NDArray[np.uint8]) -> dict[str, NDArray[np.generic]]:
    shapes = {
        "attn_norm": (HIDDEN,),
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (HIDDEN // 2, HIDDEN),
        "attn_v": (HIDDEN // 2, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_norm": (HIDDEN,),
        "ffn_gate": (48, HIDDEN),
        "ffn_up": (48, HIDDEN),
        "ffn_down": (HIDDEN, 48),
    }
    rest = {f"blk.0.{name}.weight": np.zeros(shape, np.float16) for name, shape in shapes.items()}
    return {"token_embd.weight": embedding, "output_norm.weight": np.zeros(HIDDEN, np.float32), **rest}


@pytest.mark.parametrize("name", decodable())
def test_decoded_as_the_package_does(name: str, tmp_path: Path) -> None:
    kind = gguf.GGMLQuantizationType[name]
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    # Small bytes: every scale among them is a finite number.
    raw = np.random.default_rng(0).integers(0, 0x3B, (VOCAB, HIDDEN // block_size * block_bytes), dtype=np.uint8)
    expected = torch.from_numpy(np.array(gguf.quants.dequantize(raw, kind), dtype=np.float32))
    assert expected.isfinite().all()
    assert expected.shape == (VOCAB, HIDDEN)

    def write(writer: gguf.GGUFWriter) -> None:
        add_decoder(writer, hidden_size=HIDDEN)

    path = write_gguf(
        tmp_path / "model.gguf",
        "llama",
        tensors(raw),
        [write, add_byte_level_tokenizer],
        raw_types={"token_embd.weight": kind},
    )
    stored = Checkpoint.open(convert_gguf(path, tmp_path / "cache")).tensor("model.embed_tokens.weight")
    assert torch.equal(stored, expected.bfloat16())
