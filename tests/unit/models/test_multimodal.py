"""The text part of a multimodal checkpoint, in the spellings of its tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma3Config, Gemma3ForConditionalGeneration, Gemma3TextConfig, SiglipVisionConfig

from tests.support.driver import Driver, Generation
from tests.support.shards import WatchedReference, start_shard

PROMPT = [5, 17, 3, 99, 42, 7]
NEW_TOKENS = 6


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.Tensor]:
    """A tiny Gemma 3 with a vision tower, and the logits of each position of ``PROMPT``."""
    text = Gemma3TextConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        sliding_window=4,
        layer_types=["sliding_attention", "full_attention"],
        max_position_embeddings=64,
        query_pre_attn_scalar=16,
        initializer_range=0.2,
    )
    vision = SiglipVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1, image_size=28, patch_size=14
    )
    torch.manual_seed(0)
    config = Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4, image_token_id=127)
    model = Gemma3ForConditionalGeneration._from_config(config, attn_implementation="eager").eval()
    folder = tmp_path_factory.mktemp("gemma3")
    model.save_pretrained(folder)
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([PROMPT])).logits[0]
    return folder, logits


@pytest.mark.parametrize("spelling", ["old", "new"])
def test_text_part(saved: tuple[Path, torch.Tensor], tmp_path: Path, spelling: str) -> None:
    folder, expected = saved
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    save_file(
        {rename(name, spelling): tensor for name, tensor in load_file(folder / "model.safetensors").items()},
        tmp_path / "model.safetensors",
    )
    kernels = WatchedReference()
    shard, budget = start_shard(tmp_path, kernels, max_total_tokens=64)
    for length in (1, len(PROMPT)):
        kernels.logits.clear()
        Driver(shard, budget).run([Generation(PROMPT[:length], 1)])
        torch.testing.assert_close(kernels.logits[0][0], expected[length - 1], rtol=1e-4, atol=1e-4)
    shard.close()


def rename(name: str, spelling: str) -> str:
    """Any spelling of transformers as that before 4.52 ("old") or after it ("new")."""
    for part in ("language_model", "vision_tower", "multi_modal_projector"):
        if f"{part}." not in name:
            continue
        rest = name.split(f"{part}.", 1)[1]
        if part == "language_model":
            inner = rest.removeprefix("model.")
            return f"language_model.model.{inner}" if spelling == "old" else f"model.language_model.{inner}"
        return f"{part}.{rest}" if spelling == "old" else f"model.{part}.{rest}"
    return name
