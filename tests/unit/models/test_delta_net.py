"""Gated delta nets beyond short prompts: long ones in any chunks, half precision, multimodal checkpoints, refusals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForImageTextToText

from tests.support.architectures import CONFIGS, VOCAB, make_model, spread, unavailable
from tests.support.driver import Driver, Generation
from tests.support.shards import WatchedCpu, start_shard
from tests.unit.shards.test_graphs import DeviceLengths, Running, assert_same
from tgi_core.contract import GraphMode
from tgi_core.errors import StartupError
from tgi_core.models import ARCHITECTURES, HFConfig

pytestmark = pytest.mark.skipif(bool(unavailable("qwen3_5_text")), reason="transformers has no such model type")

PROMPT = torch.randint(VOCAB, (150,), generator=torch.Generator().manual_seed(0)).tolist()
NEW_TOKENS = 8
VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 1, "out_hidden_size": 64}


def reply(folder: Path, prompts: list[list[int]], *, max_step_tokens: int, dtype: str = "float32") -> list[Tensor]:
    """For each prompt the logits that its tokens were chosen from."""
    kernels = WatchedCpu()
    shard, budget = start_shard(folder, kernels, max_total_tokens=None, dtype=dtype)
    kernels.logits.clear()
    generations = [Generation(prompt, NEW_TOKENS) for prompt in prompts]
    Driver(shard, budget, max_step_tokens=max_step_tokens, depth=1).run(generations)
    shard.close()
    return [torch.stack(kernels.logits[slot]) for slot in range(len(prompts))]


def forced(logits_TV: Tensor, prompt: list[int]) -> list[int]:
    """The prompt and its greedy reply but for the last token."""
    return [*prompt, *logits_TV.argmax(dim=-1).tolist()[:-1]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, transformers.PreTrainedModel]:
    folder = tmp_path_factory.mktemp("qwen3_5_text")
    return folder, make_model("qwen3_5_text", folder)


@pytest.mark.parametrize("max_step_tokens", [200, 100, 65])
def test_long_prompts_in_any_chunks(saved: tuple[Path, transformers.PreTrainedModel], max_step_tokens: int) -> None:
    folder, model = saved
    prompts = [PROMPT, PROMPT[:7], PROMPT[20:90]]
    for prompt, logits_TV in zip(prompts, reply(folder, prompts, max_step_tokens=max_step_tokens), strict=True):
        with torch.inference_mode():
            ids = torch.tensor([forced(logits_TV, prompt)])
            expected_TV = model(ids, use_cache=False).logits[0, len(prompt) - 1 :]
        torch.testing.assert_close(logits_TV, expected_TV, rtol=1e-4, atol=1e-4)


def test_half_precision_stays_close(saved: tuple[Path, transformers.PreTrainedModel]) -> None:
    folder, model = saved
    (logits_TV,) = reply(folder, [PROMPT], max_step_tokens=64, dtype="bfloat16")
    with torch.inference_mode():
        ids = torch.tensor([forced(logits_TV, PROMPT)])
        expected_TV = model(ids, use_cache=False).logits[0, len(PROMPT) - 1 :]
    assert (logits_TV.float() - expected_TV).norm() < 0.05 * expected_TV.norm()


def test_replayed_steps_give_the_same_tokens(saved: tuple[Path, transformers.PreTrainedModel]) -> None:
    plain, recorded = (Running(saved[0], graph, DeviceLengths()) for graph in (GraphMode.NONE, GraphMode.DECODE))
    # Rows end one after the other, so that some steps are padded.
    outputs = recorded.generate()
    assert_same(outputs, plain.generate())
    assert_same(outputs, recorded.generate())
    assert recorded.replays > 10
    for running in (plain, recorded):
        running.shard.close()


@pytest.mark.parametrize(("model_type", "stacks"), [("qwen3_5", False), ("qwen3_5_moe", False), ("qwen3_5_moe", True)])
def test_the_text_part_of_a_multimodal_checkpoint(model_type: str, stacks: bool, tmp_path: Path) -> None:
    values = {key: value for key, value in CONFIGS[f"{model_type}_text"].items() if key != "model_type"}
    text = {**values, "vocab_size": VOCAB, "tie_word_embeddings": False}
    config = AutoConfig.for_model(model_type, text_config=text, vision_config=VISION, tie_word_embeddings=False)
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config, attn_implementation="eager").float().eval()
    spread(model)
    model.save_pretrained(tmp_path)
    if stacks:
        save_file(dict(model.state_dict()), tmp_path / "model.safetensors")
    assert any("experts.gate_up_proj" in name for name in load_file(tmp_path / "model.safetensors")) == stacks
    (logits_TV,) = reply(tmp_path, [PROMPT[:20]], max_step_tokens=64)
    with torch.inference_mode():
        expected_TV = model(input_ids=torch.tensor([forced(logits_TV, PROMPT[:20])])).logits[0, 19:]
    torch.testing.assert_close(logits_TV, expected_TV, rtol=1e-4, atol=1e-4)


def build(model_type: str, **changes: Any) -> object:
    values: Mapping[str, Any] = {**CONFIGS[model_type], "vocab_size": VOCAB, "hidden_act": "silu", **changes}
    architecture = next(known for known in ARCHITECTURES if known.model_type == model_type)
    return architecture.build(HFConfig(values))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("linear_num_key_heads", 3),
        ("linear_conv_kernel_dim", 1),
        ("linear_value_head_dim", 0),
        ("layer_types", ["linear_attention", "sliding_attention"] * 2),
        ("layer_types", ["linear_attention"]),
        ("num_experts", 5),
    ],
)
def test_what_cannot_be_is_refused_by_its_key(key: str, value: object) -> None:
    build("qwen3_5_text")
    with pytest.raises(StartupError, match=key):
        build("qwen3_5_text", **{key: value})
