"""Requests whose output must match a grammar: making their matchers, advancing them, and the masks of a step."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from tgi_core.contract import LateInputs
from tgi_core.errors import ValidationError
from tgi_core.sampling.grammar import Grammar, Matcher
from tgi_core.scheduler import Finish, Outputs, Request

if TYPE_CHECKING:
    from tgi_core.sampling.grammar import Constraints

Failure = tuple[Request, str]
"""A request that cannot go on, and why."""

_UNPREPARED = "grammars are switched off on this server"


class ConstrainedRequests:
    """The loop's side of structured output.

    Args:
        constraints: makes matchers and masks on threads of its own; None refuses every grammar.
    """

    def __init__(self, constraints: Constraints | None) -> None:
        self._constraints = constraints
        self._preparing: list[tuple[Request, Future[Matcher]]] = []

    @property
    def is_preparing(self) -> bool:
        """Whether a request waits for its matcher."""
        return bool(self._preparing)

    def prepare(self, request: Request, grammar: Grammar) -> str:
        """Have the request's matcher made; it comes back from ``take_prepared``. Returns why not, "" if it will."""
        if self._constraints is None:
            return _UNPREPARED
        self._preparing.append((request, self._constraints.prepare(grammar)))
        return ""

    def forget(self, worker: bytes, request_id: int | None = None) -> None:
        """Give up what a worker has asked for, or one request of it."""
        self._preparing = [
            (request, future)
            for request, future in self._preparing
            if request.worker != worker or request_id not in (None, request.request_id)
        ]

    def take_prepared(self) -> tuple[list[Request], list[Failure]]:
        """The requests whose matcher is ready, and those that get none."""
        ready: list[Request] = []
        failed: list[Failure] = []
        waiting = []
        for request, future in self._preparing:
            if not future.done():
                waiting.append((request, future))
                continue
            try:
                request.matcher = future.result()
            except ValidationError as error:
                failed.append((request, error.detail))
            else:
                ready.append(request)
        self._preparing = waiting
        return ready, failed

    @staticmethod
    def advance(outputs: Outputs) -> list[Failure]:
        """Tell the matchers their new tokens."""
        failed = []
        for request, token_id, finish in zip(outputs.requests, outputs.token_ids, outputs.finishes, strict=True):
            matcher = request.matcher
            if matcher is not None and finish is Finish.NOT and not matcher.accept(token_id):
                failed.append((request, matcher.error or f"token {token_id} does not match the grammar"))
        return failed

    def make_masks(
        self, rows: Sequence[tuple[int, Request]], num_sampled: int, patience_s: float
    ) -> tuple[LateInputs, list[Request], list[Failure]]:
        """The masks of a step's constrained rows.

        Args:
            rows: (index among the rows that sample, request).
            num_sampled: how many rows sample.
            patience_s: how long rows without a constraint can wait.

        Returns:
            What the shard gets, the requests that sit this sampling out because their masks are not ready, and those
            that cannot go on; they sit it out too.
        """
        assert self._constraints is not None, "a constrained request was prepared"
        matchers = [request.matcher for _, request in rows if request.matcher is not None]
        job = self._constraints.start_masks(matchers)
        job.wait(patience_s)
        if len(rows) == num_sampled and not job.ready_rows():
            # Nobody else is in the step: there is nothing to be gained by sampling nothing.
            job.wait_any()
        ready = job.ready_rows()
        failed = [(rows[place][1], matchers[place].error) for place in ready if matchers[place].error]
        usable = [place for place in ready if not matchers[place].error]
        used = set(usable)
        skipped = [place for place in range(len(rows)) if place not in used]
        late = LateInputs(
            mask_rows=[rows[place][0] for place in usable],
            masks=job.masks(usable),
            skipped_rows=[rows[place][0] for place in skipped],
        )
        return late, [rows[place][1] for place in skipped], failed
