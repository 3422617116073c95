"""Sampling of every tier on a real GPU against the reference on the host, from the same logits."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace

from tests.support.sampling import Row, make_inputs
from tgi_core.reference import ReferenceKernels
from tgi_core.sampling.params import SamplingParams
from tgi_core.sampling.rules import RuleSet
from tgi_core.sampling.rules.builtin import RULES
from tgi_cuda.backend import CudaBackend

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

VOCAB = 128_256
EVERYTHING = replace(RuleSet(RULES).demand_all(), top_k=200, top_p=0.95, typical_p=0.95, min_p=0.001)
PARAMS = {
    "greedy": [SamplingParams()],
    "sampled": [SamplingParams(do_sample=True), SamplingParams(do_sample=True, top_k=50, top_p=0.9, choice=3)],
    "rules": [
        SamplingParams(do_sample=True, repetition_penalty=1.3, top_k=40),
        SamplingParams(frequency_penalty=0.5, presence_penalty=0.3),
        SamplingParams(do_sample=True, watermark_delta=2.0, logit_bias={5: 3.0, 99: -100.0}),
        SamplingParams(relative_frequency_penalty=1.5, min_tokens=1000),
    ],
    "everything": [
        EVERYTHING,
        SamplingParams(),
        SamplingParams(do_sample=True, top_p=0.8),
        SamplingParams(top_n=5),
        SamplingParams(do_sample=True, typical_p=0.9, raw_logprobs=True),
    ],
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", list(PARAMS))
def test_choices_equal_the_references(name: str, dtype: torch.dtype) -> None:
    """Of 60 rows none may differ in float32; in bfloat16 scores are the same numbers, so neither."""
    device = CudaBackend().open_device(0)
    kernels = CudaBackend().kernels(device)
    generator = torch.Generator().manual_seed(0)
    rows = [
        Row(replace(params, seed=seed), torch.randint(VOCAB, (5 + 40 * seed,), generator=generator).tolist(), 5)
        for seed in range(60 // len(PARAMS[name]))
        for params in PARAMS[name]
    ]
    logits = (torch.randn(len(rows), VOCAB, generator=generator) * 4).to(dtype)
    expected = ReferenceKernels().sample(logits, make_inputs(rows, logits, eos_token_ids=[7, 9]))
    on_gpu = logits.to(device.torch_device)
    actual = kernels.sample(on_gpu, make_inputs(rows, on_gpu, eos_token_ids=[7, 9]))
    assert actual.ids_B.tolist() == expected.ids_B.tolist()
    # Sums of probabilities are rounded differently, so a cut may keep one token more or less: seen by its mass.
    tolerance = 5e-3 if name == "everything" else 1e-4
    torch.testing.assert_close(actual.logprobs_B.cpu(), expected.logprobs_B, rtol=tolerance, atol=tolerance)
    assert (actual.top_ids_RN is None) == (expected.top_ids_RN is None)
    if actual.top_ids_RN is not None and actual.top_logprobs_RN is not None:
        torch.testing.assert_close(
            actual.top_logprobs_RN.cpu(), expected.top_logprobs_RN, rtol=tolerance, atol=tolerance
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_token_masks(dtype: torch.dtype) -> None:
    device = CudaBackend().open_device(0)
    kernels = CudaBackend().kernels(device)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(9, VOCAB, generator=generator).to(dtype)
    masks = torch.randint(-(2**31), 2**31, (3, VOCAB // 32), generator=generator).int()
    rows = torch.tensor([8, 0, 3])
    expected = ReferenceKernels().apply_bitmask(logits.clone(), rows, masks)
    gpu = device.torch_device
    assert torch.equal(kernels.apply_bitmask(logits.to(gpu), rows.to(gpu), masks.to(gpu)).cpu(), expected)
