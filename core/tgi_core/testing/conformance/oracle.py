"""Holds replies against the reference backend, token by token and whatever was said before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from tgi_core.contract import Sampled, SampleInputs
from tgi_core.reference import ReferenceKernels
from tgi_core.scheduler.request import Request
from tgi_core.testing.conformance.comparison import ConformanceError
from tgi_core.testing.conformance.running import Ask, Reply, start
from tgi_core.testing.reference_backend import ReferenceBackend

_ROWS = 64


class _Watched(ReferenceKernels):
    """Keeps the logits that each slot's last token was chosen from."""

    def __init__(self) -> None:
        self.logits: dict[int, Tensor] = {}

    def sample(self, logits_BV: Tensor, inputs: SampleInputs) -> Sampled:
        for slot, row in zip(inputs.slots_B.tolist(), logits_BV, strict=True):
            self.logits[slot] = row.float().clone()
        return super().sample(logits_BV, inputs)


class Oracle:
    """The model in ``folder`` on the reference backend in float32."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def logprobs(self, asks: Sequence[Ask]) -> Tensor:
        """Log-probabilities of the first token of each request: float32 [asks, V]."""
        kernels = _Watched()
        rows: dict[int, Tensor] = {}

        def watch(request: Request, slot: int) -> None:
            rows[request.request_id] = kernels.logits.pop(slot)

        with start(ReferenceBackend(kernels), self._folder, "float32", max_slots=_ROWS) as running:
            running.serve(asks, run_ahead=0, watch=watch)
        return torch.stack([rows[index] for index in range(len(asks))]).log_softmax(dim=-1)

    def check(self, replies: Sequence[Reply], bound: float, what: str) -> None:
        """Refuse greedy replies that are not the model's.

        Every token is tried after the tokens that the backend itself has put before it, so a choice among nearly equal
        tokens changes nothing for those that follow.

        Args:
            replies: of the backend, greedy.
            bound: how far log-probabilities may be off, in nats.
            what: for messages.

        Raises:
            ConformanceError: a token is not the model's best, or its log-probability is off.
        """
        asks = [
            Ask([*reply.ask.prompt, *reply.token_ids[:index]], 1, encoder_ids=reply.ask.encoder_ids)
            for reply in replies
            for index in range(len(reply.token_ids))
        ]
        expected = iter(self.logprobs(asks))
        for reply in replies:
            for index, (token_id, logprob) in enumerate(zip(reply.token_ids, reply.logprobs, strict=True)):
                row_V = next(expected)
                self._check_token(row_V, token_id, logprob, bound, f"{what}: token {index} of {reply.label}")

    @staticmethod
    def _check_token(row_V: Tensor, token_id: int, logprob: float, bound: float, where: str) -> None:
        true, best = row_V[token_id].item(), row_V.max().item()
        if best - true > bound:
            raise ConformanceError(
                f"{where} is {token_id}, whose log-probability is {true:.4f} on the reference; the best token is "
                f"{int(row_V.argmax())} with {best:.4f}, and {bound:g} is allowed between them."
            )
        if not abs(logprob - true) <= bound:
            raise ConformanceError(
                f"{where} is reported with log-probability {logprob:.4f}; the reference has {true:.4f}, allowed is a "
                f"difference of {bound:g}."
            )


def check_same(replies: Sequence[Reply], others: Sequence[Reply], bound: float, what: str) -> None:
    """Refuse replies that two ways of computing the same have made differently.

    After tokens that differ because both are about as likely the texts are not comparable any more. A bound of 0 asks
    for the same bits.

    Raises:
        ConformanceError: they differ.
    """
    for reply, other in zip(replies, others, strict=True):
        if len(reply.token_ids) != len(other.token_ids):
            raise ConformanceError(
                f"{what}: {reply.label} has {len(reply.token_ids)} tokens and {len(other.token_ids)} the other way."
            )
        for index, (token_id, other_id) in enumerate(zip(reply.token_ids, other.token_ids, strict=True)):
            logprob, other_logprob = reply.logprobs[index], other.logprobs[index]
            if not abs(logprob - other_logprob) <= bound or (bound == 0 and token_id != other_id):
                raise ConformanceError(
                    f"{what}: token {index} of {reply.label} is {token_id} with log-probability {logprob:.6f}, and "
                    f"{other_id} with {other_logprob:.6f} the other way; allowed is a difference of {bound:g}."
                )
            if token_id != other_id:
                break
