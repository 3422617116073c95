"""Tiny random encoder-decoders of every family, each with the features that set it apart."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, AutoModelForSeq2SeqLM, GenerationConfig, PreTrainedModel

from tests.support.greedy import Reply, run_all
from tests.support.shards import WatchedCpu, WatchedReference, start_shard
from tgi_core.sampling.params import SamplingParams
from tgi_core.scheduler import Scheduler, SchedulerConfig
from tgi_core.scheduler.request import Request

VOCAB = 160
NEW_TOKENS = 36
START, PAD = 5, VOCAB - 1

_T5: Mapping[str, Any] = {
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 96,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
}
_BART: Mapping[str, Any] = {
    "d_model": 64,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 80,
    "max_position_embeddings": 64,
}

CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "t5": {"model_type": "t5", **_T5},
    "t5-gated": {"model_type": "t5", "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, **_T5},
    "mt5": {"model_type": "mt5", "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, **_T5},
    "umt5": {"model_type": "umt5", "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, **_T5},
    "bart": {"model_type": "bart", **_BART},
    "mbart": {"model_type": "mbart", "scale_embedding": True, "forced_bos_token_id": 7, **_BART},
    "pegasus": {"model_type": "pegasus", "activation_function": "relu", "scale_embedding": True, **_BART},
    "marian": {
        "model_type": "marian",
        "activation_function": "swish",
        "scale_embedding": True,
        "bad_words_ids": [[PAD]],
        **_BART,
    },
    "blenderbot": {"model_type": "blenderbot", "activation_function": "gelu", **_BART},
    "blenderbot-small": {"model_type": "blenderbot-small", **_BART},
    "m2m_100": {"model_type": "m2m_100", "pad_token_id": 1, **_BART},
}
"""Variants by name: the model type, then what is special about it."""


def make_model(variant: str, folder: Path, configs: Mapping[str, Mapping[str, Any]] = CONFIGS) -> PreTrainedModel:
    """Make a variant in float32 and save it into ``folder``."""
    values = {
        "vocab_size": VOCAB,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": PAD,
        "decoder_start_token_id": START,
        **configs[variant],
    }
    generation = {name: values.pop(name) for name in ("forced_bos_token_id", "bad_words_ids") if name in values}
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    torch.manual_seed(0)
    model = AutoModelForSeq2SeqLM.from_config(config, attn_implementation="eager").float().eval()
    model.generation_config = GenerationConfig(
        decoder_start_token_id=START, pad_token_id=config.pad_token_id, **generation
    )
    _spread(model)
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    return model


def _spread(model: torch.nn.Module) -> None:
    """Weights wide enough that a token depends on all that is before it, and random biases and norms."""
    for name, parameter in model.named_parameters():
        if name.endswith("embed_positions.weight") and not parameter.requires_grad:
            continue
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.2)
        elif parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.2)
        elif name.endswith(("shared.weight", "embed_tokens.weight", "embed_positions.weight")):
            torch.nn.init.normal_(parameter, std=0.6 if "positions" in name else 0.3)
        elif "relative_attention_bias" in name:
            torch.nn.init.normal_(parameter, std=1.0)
        else:
            # Without a scale on scores, or with a product in the MLP, wide weights would magnify rounding.
            narrow = name.endswith("Attention.q.weight") or "DenseReluDense.wi_" in name
            torch.nn.init.normal_(parameter, std=0.05 if narrow else 0.25)
    for name, buffer in model.named_buffers():
        if name.endswith("final_logits_bias"):
            torch.nn.init.normal_(buffer, std=0.5)


def make_inputs(seed: int = 0) -> list[list[int]]:
    """Inputs of very different lengths, without the tokens that have a meaning."""
    generator = torch.Generator().manual_seed(seed)
    lengths = (3, 45, 17, 1, 9, 30)
    return [torch.randint(10, PAD, (length,), generator=generator).tolist() for length in lengths]


def reply_under_pressure(
    folder: Path,
    kernels: WatchedReference | WatchedCpu,
    inputs: list[list[int]],
    decoder_prompt: list[int],
    *,
    max_step_tokens: int = 64,
    kv_cache_tokens: int = 144,
) -> list[Reply]:
    """Serve the inputs together: ragged steps, a queue before the encoder, and preemptions, which must happen."""
    shard, budget = start_shard(folder, kernels, max_total_tokens=60, kv_cache_tokens=kv_cache_tokens)
    kernels.logits.clear()
    scheduler = Scheduler(
        SchedulerConfig(max_slots=6, max_step_tokens=max_step_tokens, eos_token_ids=frozenset()), budget
    )
    requests = [
        Request(b"", number, list(decoder_prompt), NEW_TOKENS, SamplingParams(), encoder_ids=encoder_ids)
        for number, encoder_ids in enumerate(inputs)
    ]
    rows = run_all(shard, scheduler, requests, kernels)
    shard.close()
    assert scheduler.preemptions > 0
    return [
        Reply(encoder_ids, request.token_ids[len(decoder_prompt) :], torch.stack(rows[request.request_id]))
        for request, encoder_ids in zip(requests, inputs, strict=True)
    ]


@torch.inference_mode()
def assert_greedy(
    model: PreTrainedModel, replies: list[Reply], decoder_prompt: list[int], suppressed: list[int]
) -> None:
    """Every token is transformers' best after the tokens before it, out of the same logits.

    That the logits differ from token to token, and from those of another input, is asserted.
    """
    lively = 0
    swapped = [replies[-1], *replies[:-1]]
    for (encoder_ids, token_ids, logits_TV), other in zip(replies, swapped, strict=True):
        decoder_ids = torch.tensor([[*decoder_prompt, *token_ids[:-1]]])
        expected_TV = _logits(model, encoder_ids, decoder_ids, len(decoder_prompt), suppressed)
        assert token_ids == expected_TV.argmax(dim=-1).tolist()
        torch.testing.assert_close(logits_TV, expected_TV, rtol=1e-4, atol=1e-4)
        kept = expected_TV.isfinite()
        elsewhere_TV = _logits(model, other.prompt, decoder_ids, len(decoder_prompt), suppressed)
        assert float((elsewhere_TV - expected_TV)[kept].abs().mean()) > 0.02, "the input does not matter"
        lively += int(expected_TV.std(dim=0).nan_to_num().mean() > 0.02)
    assert lively >= len(replies) - 1, "the logits are too alike from token to token"


def _logits(
    model: PreTrainedModel, encoder_ids: list[int], decoder_ids: Tensor, prompt_len: int, suppressed: list[int]
) -> Tensor:
    logits_TV = model(input_ids=torch.tensor([encoder_ids]), decoder_input_ids=decoder_ids).logits[0].float()
    logits_TV[:, suppressed] = float("-inf")
    return logits_TV[prompt_len - 1 :]


@torch.inference_mode()
def generate(model: PreTrainedModel, encoder_ids: list[int]) -> list[int]:
    """Transformers' own greedy reply, with the decoder's first tokens."""
    generated = model.generate(
        torch.tensor([encoder_ids]),
        attention_mask=torch.ones(1, len(encoder_ids), dtype=torch.int64),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        num_beams=1,
    )
    return [int(token) for token in generated[0]]
