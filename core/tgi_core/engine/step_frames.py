"""What a collected step tells the API processes: one frame for each, its rows as columns."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tgi_core.engine.frames import (
    EngineMessage,
    EngineStats,
    StepFrame,
    pack_floats,
    pack_ids,
    pack_request_ids,
)
from tgi_core.scheduler import Outputs, Request


def make_frames(
    step: int, outputs: Outputs, admitted: Iterable[Request], stats: EngineStats, workers: Collection[bytes]
) -> list[tuple[bytes, EngineMessage]]:
    """One frame for each API process that has rows in this step; one to each where none has, for the metrics.

    Args:
        step: number of the step.
        outputs: what it gave.
        admitted: requests that left the queue since the last step.
        stats: gauges after the step.
        workers: all API processes.
    """
    columns_of: dict[bytes, _Columns] = {}
    for request in admitted:
        columns = columns_of.setdefault(request.worker, _Columns())
        waited = request.admitted_at - request.submitted_at
        columns.admitted.append((request.request_id, waited, request.cached_len))
    for request, token_id, logprob, finish in zip(
        outputs.requests, outputs.token_ids, outputs.logprobs, outputs.finishes, strict=True
    ):
        columns = columns_of.get(request.worker) or columns_of.setdefault(request.worker, _Columns())
        columns.request_ids.append(request.request_id)
        columns.token_ids.append(token_id)
        columns.logprobs.append(logprob)
        columns.finishes.append(finish)
    # Empty in a step without alternatives.
    for request, top in zip(outputs.requests, outputs.tops, strict=False):
        if top is not None:
            entry = (request.request_id, pack_ids(top.token_ids), pack_floats(top.logprobs))
            columns_of[request.worker].tops.append(entry)
    for request in outputs.prompts:
        assert request.prompt_logprobs is not None, "it asked for them"
        entry_of_prompt = (request.request_id, pack_floats(request.prompt_logprobs))
        columns_of[request.worker].prompt_logprobs.append(entry_of_prompt)
    columns_of = columns_of or {worker: _Columns() for worker in workers}
    return [(worker, columns.to_frame(step, stats)) for worker, columns in columns_of.items()]


class _Columns:
    """The rows of a step that go to one API process."""

    __slots__ = ("admitted", "finishes", "logprobs", "prompt_logprobs", "request_ids", "token_ids", "tops")

    def __init__(self) -> None:
        self.request_ids: list[int] = []
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.finishes = bytearray()
        self.admitted: list[tuple[int, float, int]] = []
        self.tops: list[tuple[int, bytes, bytes]] = []
        self.prompt_logprobs: list[tuple[int, bytes]] = []

    def to_frame(self, step: int, stats: EngineStats) -> StepFrame:
        return StepFrame(
            step,
            pack_request_ids(self.request_ids),
            pack_ids(self.token_ids),
            pack_floats(self.logprobs),
            bytes(self.finishes),
            self.admitted,
            stats,
            self.tops,
            self.prompt_logprobs,
        )
