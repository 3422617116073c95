"""Greedy replies through the scheduler under pressure, held against another implementation of the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from tests.support.shards import WatchedCpu, WatchedReference, start_shard
from tgi_core.contract import ModelShard
from tgi_core.sampling.params import SamplingParams
from tgi_core.scheduler import Scheduler, SchedulerConfig
from tgi_core.scheduler.request import Request

Oracle = Callable[[Tensor], Tensor]
"""Another implementation: token ids [1, T] to logits [1, T, V], without any cache."""

NEW_TOKENS = 20
_TOTAL_TOKENS = 80
_STEP_TOKENS = 13
"""Cuts prompts off the block boundaries and mixes prefill with decode."""

_CACHE_TOKENS = 128
"""Less than the requests together need, so that some lose their blocks and are computed again."""


class Reply(NamedTuple):
    """One prompt, what came out, and the logits that each token was chosen from."""

    prompt: list[int]
    token_ids: list[int]
    logits_TV: Tensor


def make_prompts(vocab_size: int, seed: int = 0) -> list[list[int]]:
    """Prompts of very different lengths; the last begins as the second does."""
    generator = torch.Generator().manual_seed(seed)
    prompts = [torch.randint(vocab_size, (length,), generator=generator).tolist() for length in (3, 45, 17, 1, 9)]
    prompts[-1] = prompts[1][:32] + prompts[-1]
    return prompts


def reply_under_pressure(
    folder: Path,
    kernels: WatchedReference | WatchedCpu,
    prompts: list[list[int]],
    max_slots: int = 6,
    *,
    cache_tokens: int = _CACHE_TOKENS,
    trust_remote_code: bool = False,
) -> list[Reply]:
    """Serve the prompts together: ragged steps, chunks, a shared prefix, and preemptions, all of which must happen.

    A model without a KV cache shares and preempts nothing. With fewer slots than prompts, slots are used again.
    """
    shard, budget = start_shard(
        folder,
        kernels,
        max_total_tokens=_TOTAL_TOKENS,
        kv_cache_tokens=cache_tokens,
        max_slots=max_slots,
        trust_remote_code=trust_remote_code,
    )
    kernels.logits.clear()
    config = SchedulerConfig(
        max_slots=max_slots,
        max_step_tokens=_TOTAL_TOKENS if shard.whole_prompts else _STEP_TOKENS,
        eos_token_ids=frozenset(),
        chunked_prefill=not shard.whole_prompts,
    )
    scheduler = Scheduler(config, budget)
    requests = [
        Request(b"", number, list(prompt), NEW_TOKENS, SamplingParams()) for number, prompt in enumerate(prompts)
    ]
    rows = run_all(shard, scheduler, requests, kernels)
    shard.close()
    assert (scheduler.preemptions > 0) == bool(budget.groups)
    # Slots with states share no prefixes.
    cached_len = requests[-1].cached_len
    assert cached_len == 0 if budget.has_states else cached_len >= 16
    return [
        Reply(prompt, request.token_ids[len(prompt) :], torch.stack(rows[request.request_id]))
        for request, prompt in zip(requests, prompts, strict=True)
    ]


def run_all(
    shard: ModelShard, scheduler: Scheduler, requests: Sequence[Request], kernels: WatchedReference | WatchedCpu
) -> dict[int, list[Tensor]]:
    """Serve the requests to their ends; returns the logits of each one's tokens by its number."""
    rows: dict[int, list[Tensor]] = {request.request_id: [] for request in requests}
    for request in requests:
        scheduler.add(request)
    while scheduler.has_requests:
        plan = scheduler.plan()
        assert plan is not None
        ticket = shard.launch(plan)
        shard.sample(ticket, None)
        result = shard.collect(ticket)
        outputs = scheduler.apply(result)
        for request, slot in zip(outputs.requests, result.slots, strict=True):
            rows[request.request_id].append(kernels.logits[slot].pop())
    return rows


@torch.inference_mode()
def assert_greedy(replies: list[Reply], oracle: Oracle) -> None:
    """Every token is the oracle's best after the tokens before it, out of the same logits.

    So the tokens are those of the oracle's own greedy reply. Random models like to repeat one token, which says little;
    that the logits of all replies but one differ from token to token, by much more than is allowed here, is asserted.
    """
    lively = 0
    for prompt, token_ids, logits_TV in replies:
        expected_TV = oracle(torch.tensor([[*prompt, *token_ids[:-1]]]))[0, len(prompt) - 1 :].float()
        assert token_ids == expected_TV.argmax(dim=-1).tolist()
        torch.testing.assert_close(logits_TV, expected_TV, rtol=1e-4, atol=1e-4)
        lively += int(expected_TV.std(dim=0).mean() > 0.02)
    assert lively >= len(replies) - 1, "the logits are too alike from token to token"
