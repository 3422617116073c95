"""One request as the scheduler sees it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

from tgi_core.sampling.params import SamplingParams, Tier

if TYPE_CHECKING:
    from tgi_core.sampling.grammar import Matcher


class Finish(IntEnum):
    """Why a request ended, as the engine sees it. Stop strings are the API process's business."""

    NOT = 0
    EOS = 1
    LENGTH = 2
    """``max_new_tokens`` or the end of the context."""
    STOP_TOKEN = 3
    """One of the request's own stop tokens."""


class RequestState(IntEnum):
    """Where a request is in its life."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    """Its slot and blocks are gone; it goes back to the queue once its tokens in flight are known."""
    FINISHED = 3


class Request:
    """Mutable bookkeeping of one request; only the scheduler writes it.

    Counting: ``total`` tokens exist (``in_flight`` of them were sampled by steps not yet collected, so their ids are
    not known here), ``computed`` of them have their keys and values in the cache once all launched steps have run,
    ``collected`` once all collected steps have.

    Attributes:
        worker: identity of the API process's connection.
        request_id: the API process's number for it.
        token_ids: the tokens known so far, prompt first; grows the list it was made with.
        prompt_len: how many are the prompt.
        max_tokens: ``prompt_len`` plus the most output tokens it may have.
        encoder_ids: what the encoder reads; empty for models without one. The prompt then is what the decoder starts
            with.
        slot, epoch: where it runs; -1 while it does not.
        block_ids: per KV group its blocks in order; -1 where a window has left them behind.
        capacity: tokens that its blocks cover, the least over the groups.
        block_keys: prefix-cache keys of its leading full blocks, as far as they were needed.
        registered: leading blocks it has offered to the prefix cache.
        last_step: number of the last step launched that names its slot.
        cached_len: prompt tokens that were found in the prefix cache when it first left the queue.
        tier: the sampling work it needs.
        stop_token_ids: tokens that end it, beside the model's own; not before ``min_tokens`` of output.
        matcher: what its output must match, advanced with each known token; None for anything.
        prompt_logprobs: log-probabilities of its prompt's tokens from the second on, as far as they are known; None
            for a request that does not ask for them.
    """

    __slots__ = (
        "admitted_at",
        "block_ids",
        "block_keys",
        "cached_len",
        "capacity",
        "collected",
        "computed",
        "encoder_ids",
        "epoch",
        "ignore_eos",
        "in_flight",
        "last_step",
        "matcher",
        "max_tokens",
        "prompt_len",
        "prompt_logprobs",
        "registered",
        "request_id",
        "sampling",
        "slot",
        "state",
        "stop_token_ids",
        "submitted_at",
        "tier",
        "token_ids",
        "total",
        "was_admitted",
        "worker",
    )

    def __init__(
        self,
        worker: bytes,
        request_id: int,
        prompt: list[int],
        max_new_tokens: int,
        sampling: SamplingParams,
        *,
        ignore_eos: bool = False,
        prompt_logprobs: bool = False,
        stop_token_ids: Collection[int] = (),
        submitted_at: float = 0.0,
        encoder_ids: Sequence[int] = (),
    ) -> None:
        self.worker = worker
        self.request_id = request_id
        self.token_ids = prompt
        self.prompt_len = len(prompt)
        self.encoder_ids = list(encoder_ids)
        self.max_tokens = len(prompt) + max_new_tokens
        self.sampling = sampling
        self.tier: Tier = sampling.tier
        self.ignore_eos = ignore_eos
        self.matcher: Matcher | None = None
        self.prompt_logprobs: list[float] | None = [] if prompt_logprobs else None
        self.stop_token_ids = frozenset(stop_token_ids)
        self.submitted_at = submitted_at
        self.state = RequestState.WAITING
        self.was_admitted = False
        self.admitted_at = 0.0
        self.cached_len = 0
        self.total = len(prompt)
        self.in_flight = 0
        self.block_keys: list[bytes] = []
        self.leave_slot()

    def leave_slot(self) -> None:
        """Forget slot and cache; the tokens stay."""
        self.slot = -1
        self.epoch = -1
        self.computed = 0
        self.collected = 0
        self.capacity = 0
        self.registered = 0
        self.last_step = 0
        self.block_ids: list[list[int]] = []

    @property
    def needs_prompt_logprobs(self) -> bool:
        """Whether log-probabilities of its prompt's tokens are still to be computed."""
        return self.prompt_logprobs is not None and len(self.prompt_logprobs) < self.prompt_len - 1

    @property
    def num_output_tokens(self) -> int:
        """Output tokens known so far."""
        return len(self.token_ids) - self.prompt_len
