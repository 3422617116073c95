"""Cases of the choice of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch
from msgspec.structs import replace
from torch import Tensor

from tgi_core.contract import Kernels, Sampled, SampleInputs
from tgi_core.reference import ReferenceKernels
from tgi_core.reference.sampling import choose, kept_ranks, scale
from tgi_core.sampling.params import SamplingParams, Tier
from tgi_core.testing.conformance.cases.case import Bench, Case, Outputs, Run, Scope
from tgi_core.testing.conformance.tolerance import CHOICE_LOGPROB
from tgi_core.testing.sampling_rows import Row, make_inputs

WARPED = (
    SamplingParams(do_sample=True),
    SamplingParams(do_sample=True, temperature=0.7, top_k=5),
    SamplingParams(do_sample=True, temperature=1.5, top_p=0.9),
    SamplingParams(do_sample=True, temperature=2.0, top_k=50, top_p=0.5, choice=3),
    SamplingParams(do_sample=True, temperature=1e-30),
    SamplingParams(temperature=0.5, top_k=3, top_p=0.5),
    SamplingParams(do_sample=True, top_k=1),
    SamplingParams(do_sample=True, top_p=0.01),
    SamplingParams(do_sample=True, top_k=5000, top_p=0.999, choice=1, seed=2**64 - 1),
)
RULED = (
    SamplingParams(),
    SamplingParams(repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.25, top_n=3),
    SamplingParams(do_sample=True, min_p=0.05, typical_p=0.9, raw_logprobs=True, top_n=2),
    SamplingParams(do_sample=True, watermark_delta=2.0, relative_frequency_penalty=1.0),
    SamplingParams(logit_bias={3: 40.0, 90: -100.0}, min_tokens=6),
    SamplingParams(do_sample=True, allowed_token_ids=(3, 5, 8), top_k=2),
    SamplingParams(bad_words=((3,), (0, 1)), top_n=5),
    SamplingParams(do_sample=True, top_p=0.8),
)


def sample(scope: Scope) -> Iterator[Case]:
    """Every tier; equal scores, forbidden tokens, rows that need more beside rows that do not."""
    for vocab_size in (500,) if scope.quick else (500, 5000, 40_003):
        greedy = partial(_sample, params=WARPED, vocab_size=vocab_size, tier=Tier.GREEDY)
        yield _case(f"greedy, {vocab_size} tokens", greedy)
        for count in (1, len(WARPED)):
            warped = partial(_sample, params=WARPED[:count], vocab_size=vocab_size, tier=Tier.SAMPLED)
            suspects: dict[str, Run] = {name: partial(warped, change=change) for name, change in _MISTAKES.items()}
            suspects["top-p keeps one token too many"] = partial(_with, _KeepsOneMore(), warped)
            yield _case(f"temperature, top-k, top-p, {count} rows, {vocab_size} tokens", warped, suspects)
        ruled = partial(_sample, params=RULED, vocab_size=vocab_size, tier=Tier.FULL)
        yield _case(f"every rule, {vocab_size} tokens", ruled)
    yield _case("greedy, equal scores", partial(_sample_equal, tier=Tier.GREEDY))
    for top_k, top_p in ((3, 1.0), (0, 0.5), (4, 0.5), (40, 0.9)):
        run = partial(_sample_equal, tier=Tier.SAMPLED, top_k=top_k, top_p=top_p)
        yield _case(f"equal scores at the cut, top-k {top_k}, top-p {top_p}", run)
    yield _case("all but two tokens are forbidden", _sample_forbidden)
    for index, params in enumerate(RULED):
        yield _case(f"one row alone, {index}", partial(_sample, params=(params,), vocab_size=500, tier=Tier.FULL))


Change = Callable[[SampleInputs], SampleInputs]

_MISTAKES: Mapping[str, Change] = {
    "the temperature is left out": lambda inputs: inputs._replace(temperature_B=torch.ones_like(inputs.temperature_B)),
    "top-k is left out": lambda inputs: inputs._replace(top_k_B=torch.zeros_like(inputs.top_k_B)),
    "top-p is left out": lambda inputs: inputs._replace(top_p_B=torch.ones_like(inputs.top_p_B)),
    "the seed is left out": lambda inputs: inputs._replace(seed_B=torch.zeros_like(inputs.seed_B)),
    "only the lower half of the seed counts": lambda inputs: inputs._replace(seed_B=inputs.seed_B & 0xFFFFFFFF),
    "the index of the choice is left out": lambda inputs: inputs._replace(choice_B=torch.zeros_like(inputs.choice_B)),
    "the position is left out": lambda inputs: inputs._replace(positions_B=torch.zeros_like(inputs.positions_B)),
}


class _KeepsOneMore(ReferenceKernels):
    """The mistake of a set that ends behind the token that reaches p, and not with it."""

    def sample(self, logits_BV: Tensor, inputs: SampleInputs) -> Sampled:
        scores_BV = logits_BV.float()
        warped_BV = scale(scores_BV, inputs.temperature_B)
        sorted_BV, order_BV = warped_BV.sort(dim=-1, descending=True, stable=True)
        in_top_k_BV = kept_ranks(sorted_BV, inputs.top_k_B, torch.ones_like(inputs.top_p_B))
        kept_BV = kept_ranks(sorted_BV, inputs.top_k_B, inputs.top_p_B).roll(1, dims=-1)
        kept_BV[:, 0] = True
        is_kept_BV = torch.empty_like(kept_BV).scatter_(1, order_BV, kept_BV & in_top_k_BV)
        warped_BV = warped_BV.masked_fill(~is_kept_BV, float("-inf"))
        return Sampled(*choose(torch.where(inputs.do_sample_B[:, None], warped_BV, scores_BV), inputs))


def _with(mistaken: Kernels, run: Run, _kernels: Kernels, bench: Bench) -> Outputs:
    return run(mistaken, bench)


def _case(label: str, run: Run, suspects: Mapping[str, Run] | None = None) -> Case:
    return Case("sample", label, run, suspects=suspects or {}, tolerance=CHOICE_LOGPROB)


def _sample(
    kernels: Kernels,
    bench: Bench,
    *,
    params: Sequence[SamplingParams],
    vocab_size: int,
    tier: Tier,
    change: Change | None = None,
) -> Outputs:
    logits_BV = bench.normal(len(params), vocab_size, scale=3)
    inputs = _inputs(params, logits_BV, tier)
    return _outputs(kernels.sample(logits_BV.clone(), inputs if change is None else change(inputs)))


def _sample_equal(kernels: Kernels, bench: Bench, *, tier: Tier, top_k: int = 0, top_p: float = 1.0) -> Outputs:
    """Many tokens share a score; of equal ones those with the smaller ids come first."""
    params = [replace(WARPED[0], top_k=top_k, top_p=top_p)] * 6
    row = torch.full((600,), -9.0)
    row[100:110], row[400:450], row[7] = 2.0, 1.0, 2.0 if tier is Tier.GREEDY else 3.0
    logits_BV = row.repeat(6, 1).to(bench.dtype).to(bench.device)
    return _outputs(kernels.sample(logits_BV, _inputs(params, logits_BV, tier)))


def _sample_forbidden(kernels: Kernels, bench: Bench) -> Outputs:
    logits_BV = torch.full((len(WARPED), 700), float("-inf"))
    logits_BV[:, [3, 654]] = 0.5
    logits_BV = logits_BV.to(bench.dtype).to(bench.device)
    return _outputs(kernels.sample(logits_BV, _inputs(WARPED, logits_BV, Tier.SAMPLED)))


def _inputs(params: Sequence[SamplingParams], logits_BV: Tensor, tier: Tier) -> SampleInputs:
    rows = [
        Row(replace(one, seed=one.seed or (row * 0x9E3779B97F4A7C15) % 2**64), [3 + row, 1, 0] * (4 + row), 3)
        for row, one in enumerate(params)
    ]
    return make_inputs(rows, logits_BV, tier=tier, eos_token_ids=(5,))


def _outputs(sampled: Sampled) -> Outputs:
    outputs = {"tokens": sampled.ids_B, "log-probabilities": sampled.logprobs_B}
    if sampled.top_ids_RN is not None and sampled.top_logprobs_RN is not None:
        # Which of equally likely alternatives comes first is said; of those cut off nothing is.
        kept = sampled.top_logprobs_RN.isfinite()
        outputs["alternatives"] = sampled.top_ids_RN.masked_fill(~kept, -1)
        outputs["their log-probabilities"] = sampled.top_logprobs_RN
    return outputs
