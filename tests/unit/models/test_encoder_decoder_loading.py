"""What a checkpoint of an encoder-decoder may hold, and what its configuration may ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.support.encoder_decoders import START, make_model
from tests.support.shards import WatchedCpu, start_shard
from tests.support.tiny_models import rewrite_config
from tgi_core.errors import StartupError, UnsupportedModelError
from tgi_core.models.choose import choose_model
from tgi_core.models.encoder_decoder.model import EncoderDecoderModel
from tgi_core.models.encoder_decoder.positions import backward_biases, two_way_biases
from tgi_core.models.encoder_decoder.spec import DistanceBuckets
from tgi_core.models.hf_config import HFConfig
from tgi_core.models.own import open_own
from tgi_core.sampling.params import SamplingParams
from tgi_core.scheduler import Scheduler, SchedulerConfig
from tgi_core.scheduler.request import Request

INPUT = [11, 12, 13]


def first_logits(folder: Path, **shard: Any) -> tuple[Tensor, int]:
    """The logits of the first token, and the memory of the weights."""
    kernels = WatchedCpu()
    running, budget = start_shard(folder, kernels, **shard)
    kernels.logits.clear()
    scheduler = Scheduler(SchedulerConfig(max_slots=6, max_step_tokens=64, eos_token_ids=frozenset()), budget)
    scheduler.add(Request(b"", 1, [START], 1, SamplingParams(), encoder_ids=INPUT))
    plan = scheduler.plan()
    assert plan is not None
    ticket = running.launch(plan)
    running.sample(ticket, None)
    scheduler.apply(running.collect(ticket))
    running.close()
    ((logits_V,),) = kernels.logits.values()
    return logits_V, next(line.size_bytes for line in budget.memory if line.name == "weights")


def rewrite(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Let the checkpoint hold these tensors, each by itself."""
    save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


def test_copies_of_the_embedding_are_one(tmp_path: Path) -> None:
    model = make_model("t5", tmp_path)
    expected, size_bytes = first_logits(tmp_path)
    tensors = dict(model.state_dict())
    assert {"shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"} <= {
        *tensors
    }
    rewrite(tmp_path, tensors)
    assert torch.equal(first_logits(tmp_path)[0], expected)
    assert first_logits(tmp_path)[1] == size_bytes
    # Whatever name is left, it is the table.
    for name in ("shared.weight", "encoder.embed_tokens.weight", "lm_head.weight"):
        del tensors[name]
    rewrite(tmp_path, tensors)
    assert torch.equal(first_logits(tmp_path)[0], expected)


def test_a_head_of_its_own(tmp_path: Path) -> None:
    model = make_model("t5-gated", tmp_path)
    tensors = dict(model.state_dict())
    tensors["lm_head.weight"] = tensors["shared.weight"]
    rewrite(tmp_path, tensors)
    plain, size_bytes = first_logits(tmp_path)
    rewrite(tmp_path, tensors | {"lm_head.weight": 2 * tensors["shared.weight"]})
    logits_V, larger_bytes = first_logits(tmp_path)
    torch.testing.assert_close(logits_V, 2 * plain)
    assert larger_bytes - size_bytes == tensors["shared.weight"].nbytes


def test_a_checkpoint_of_the_model_without_its_head(tmp_path: Path) -> None:
    model = make_model("bart", tmp_path)
    bias_V = model.final_logits_bias[0]
    expected, _ = first_logits(tmp_path)
    rewrite(tmp_path, dict(model.model.state_dict()))
    torch.testing.assert_close(first_logits(tmp_path)[0] + bias_V, expected)


def test_missing_and_surplus_tensors_are_told(tmp_path: Path) -> None:
    tensors = dict(make_model("bart", tmp_path).state_dict())
    rewrite(tmp_path, tensors | {"model.encoder.more": torch.ones(1)})
    with pytest.raises(StartupError, match=r"model\.encoder\.more"):
        first_logits(tmp_path)
    del tensors["model.decoder.layers.1.encoder_attn.k_proj.bias"]
    rewrite(tmp_path, tensors)
    with pytest.raises(StartupError, match=r"layers\.1\.encoder_attn\.k_proj\.bias"):
        first_logits(tmp_path)


@pytest.mark.parametrize("variant", ["t5-gated", "m2m_100"])
def test_random_weights_in_bfloat16(variant: str, tmp_path: Path) -> None:
    make_model(variant, tmp_path)
    logits_V, _ = first_logits(tmp_path, load_format="dummy", dtype="bfloat16")
    assert logits_V.isfinite().all()
    assert logits_V.std() > 0


def test_a_configuration_that_is_not_understood(tmp_path: Path) -> None:
    make_model("t5", tmp_path)
    rewrite_config(tmp_path, {"feed_forward_proj": "gated-relu"})
    with pytest.raises(UnsupportedModelError, match="feed_forward_proj"):
        open_own(tmp_path, HFConfig.read(tmp_path))
    rewrite_config(tmp_path, {"feed_forward_proj": "relu", "relative_attention_max_distance": 4})
    with pytest.raises(StartupError, match="relative_attention_num_buckets"):
        choose_model(tmp_path)


@pytest.mark.parametrize(
    ("settings", "scaled"),
    [
        ({}, True),
        ({"tie_word_embeddings": False}, False),
        ({"tie_word_embeddings": True, "scale_decoder_outputs": False}, False),
        ({"model_type": "mt5", "tie_word_embeddings": True}, False),
        ({"model_type": "umt5", "tie_word_embeddings": True}, True),
    ],
)
def test_whether_logits_are_scaled(settings: dict[str, Any], scaled: bool, tmp_path: Path) -> None:
    make_model("t5", tmp_path)
    rewrite_config(tmp_path, settings, drop=("tie_word_embeddings", "scale_decoder_outputs"))
    model = choose_model(tmp_path)
    assert isinstance(model, EncoderDecoderModel)
    assert model.spec.logit_scale == (64**-0.5 if scaled else 1.0)


def test_buckets_are_those_of_transformers() -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    buckets = DistanceBuckets(num_buckets=32, max_distance=128, every_layer=False)
    bias_BH = torch.arange(32.0)[:, None]
    relative = torch.arange(-128, 129)
    two_way = T5Attention._relative_position_bucket(relative, bidirectional=True, num_buckets=32, max_distance=128)
    assert two_way_biases(bias_BH, buckets)[0].tolist() == two_way.tolist()
    backward = T5Attention._relative_position_bucket(-torch.arange(129), bidirectional=False, num_buckets=32)
    assert backward_biases(bias_BH, buckets)[0].tolist() == backward.tolist()
