"""Carries out plans with static-shaped work: which rows are computed together, and what comes of them."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tgi_core.contract import (
    Device,
    DeviceEvent,
    HostCopy,
    LateInputs,
    PromptLogprobs,
    StepPlan,
    StepResult,
    TopTokens,
)
from tgi_core.sampling.params import Tier
from tgi_core.shards.buckets import ForwardShape, first_covering
from tgi_core.shards.seen_blocks import SeenBlocks
from tgi_core.shards.slots import SlotTable
from tgi_core.shards.static_runner import StaticRunner


class Call(NamedTuple):
    """Some rows of a plan that are computed together.

    Attributes:
        rows: their indexes in the plan.
        hidden_BE: of each row's last token, padded.
    """

    rows: Sequence[int]
    hidden_BE: Tensor


class RowScores(NamedTuple):
    """Log-probabilities of one row's tokens from position ``start`` on; the first ``num_tokens`` are the prompt's."""

    row: int
    start: int
    num_tokens: int
    logprobs_Q: HostCopy


class ForwardCalls(NamedTuple):
    """A step whose forward has been launched."""

    calls: Sequence[Call]
    scores: Sequence[RowScores]


class SampledCalls(NamedTuple):
    """A sampled step on its way to the host.

    Attributes:
        outputs: of each call what ``Sample`` gives, () where none of its rows samples.
        event: after the last copy.
        skipped: rows of the plan that sit their sampling out.
    """

    outputs: Sequence[tuple[HostCopy, ...]]
    event: DeviceEvent
    skipped: frozenset[int]


class PlanRunner:
    """Carries out plans in the shapes that are ready.

    Args:
        device: copies to the host and records the events.
        runner: does the work.
        slots: the host's part of the slot tables.
        seen: which blocks attention looks at.

    Attributes:
        ready: shapes of forwards that are compiled, the cheapest first.
    """

    def __init__(self, device: Device, runner: StaticRunner, slots: SlotTable, seen: SeenBlocks) -> None:
        self.ready: list[ForwardShape] = []
        self._device = device
        self._runner = runner
        self._slots = slots
        self._seen = seen

    def prepare(self, shape: ForwardShape) -> None:
        """Compile a shape."""
        self._runner.prepare(shape)
        insort(self.ready, shape, key=ForwardShape.order)

    @property
    def late_compiles(self) -> int:
        """Programs that steps have had compiled."""
        return self._runner.late_compiles

    def forward(self, plan: StepPlan) -> ForwardCalls:
        """Bring the plan's changes into the tables and compute its rows."""
        runner = self._runner
        for new in plan.new_slots:
            runner.enter(new)
        runner.append_blocks(plan.appended_blocks)
        assert not plan.copied_blocks, "the scheduler copies no blocks"
        calls, scores = [], []
        for rows, shape in self._divide(plan):
            slots = [plan.slots[row] for row in rows]
            q_lens = [plan.q_lens[row] for row in rows]
            starts = [plan.kv_lens[row] - plan.q_lens[row] for row in rows]
            hidden_BE, hidden_TE = runner.forward(shape, slots, starts, q_lens)
            calls.append(Call(rows, hidden_BE))
            for index, row in enumerate(rows):
                if row in plan.prompt_logprobs:
                    start, slot = starts[index], slots[index]
                    logprobs_Q = runner.score(shape, hidden_TE, row=index, slot=slot, start=start)
                    # The last position of a prompt says how likely the first token of the output was.
                    num_tokens = max(0, min(q_lens[index], self._slots[slot].prompt_len - start - 1))
                    scores.append(RowScores(row, start + 1, num_tokens, self._device.download(logprobs_Q)))
        return ForwardCalls(calls, scores)

    def sample(self, plan: StepPlan, forward: ForwardCalls, late: LateInputs | None) -> SampledCalls:
        """Sample the rows of a launched forward."""
        sampling = [row for row, samples in enumerate(plan.samples) if samples]
        masks: Mapping[int, Tensor] = {}
        skipped, tier = frozenset[int](), plan.tier
        if late is not None:
            skipped = frozenset(sampling[row] for row in late.skipped_rows)
            masks = _masks_by_row(late, sampling)
            if masks and self._slots.report_raw([plan.slots[row] for row in sampling]):
                # A mask stands between the model's own log-probabilities and the choice, whatever the tier.
                tier = Tier.FULL
        outputs: list[tuple[HostCopy, ...]] = []
        for rows, hidden_BE in forward.calls:
            takes = [plan.samples[row] and row not in skipped for row in rows]
            if not any(takes):
                outputs.append(())
                continue
            slots = [plan.slots[row] for row in rows]
            scratch = self._runner.scratch_slot
            targets = [slot if taken else scratch for slot, taken in zip(slots, takes, strict=True)]
            call_masks = {index: masks[row] for index, row in enumerate(rows) if row in masks}
            sampled = self._runner.sample(hidden_BE, slots, targets, tier, call_masks)
            outputs.append(tuple(self._device.download(tensor) for tensor in sampled))
        return SampledCalls(outputs, self._device.record_event(), skipped)

    def result(self, plan: StepPlan, forward: ForwardCalls, sampled: SampledCalls) -> StepResult:
        """A collected step, whose tokens have arrived."""
        rows: list[int] = []
        token_ids: list[int] = []
        logprobs: list[float] = []
        tops: list[TopTokens | None] = []
        for call, copies in zip(forward.calls, sampled.outputs, strict=True):
            outputs = [copy.read() for copy in copies]
            for index, row in enumerate(call.rows):
                if not plan.samples[row] or row in sampled.skipped:
                    continue
                rows.append(row)
                token_ids.append(int(outputs[0][index]))
                logprobs.append(float(outputs[1][index]))
                slot = self._slots[plan.slots[row]]
                tops.append(slot.trim(outputs[2][index].tolist(), outputs[3][index].tolist()) if slot.top_n else None)
        prompt_logprobs = [
            PromptLogprobs(plan.slots[row], plan.epochs[row], start, logprobs_Q.read()[:num_tokens].tolist())
            for row, start, num_tokens, logprobs_Q in forward.scores
        ]
        return StepResult(
            plan.step,
            [plan.slots[row] for row in rows],
            [plan.epochs[row] for row in rows],
            token_ids,
            logprobs,
            tops if any(tops) else [],
            prompt_logprobs,
        )

    def _divide(self, plan: StepPlan) -> Iterator[tuple[Sequence[int], ForwardShape]]:
        """The plan's rows in runs that are computed together, and the shape of each: as many rows as a shape takes."""
        start, end = 0, len(plan.slots)
        while start < end:
            rows = range(start, end)
            shape = self._ready_shape(plan, rows)
            if shape is None:
                # More rows need more: halving finds how many there is a shape for.
                few, many = 1, len(rows)
                while many - few > 1:
                    middle = (few + many) // 2
                    few, many = (few, middle) if self._ready_shape(plan, rows[:middle]) is None else (middle, many)
                rows = rows[:few]
                shape = self._ready_shape(plan, rows)
            assert shape is not None, "the first shapes take any row"
            yield rows, shape
            start = rows.stop

    def _ready_shape(self, plan: StepPlan, rows: range) -> ForwardShape | None:
        part = slice(rows.start, rows.stop)
        return first_covering(self.ready, self._seen.needed(plan.q_lens[part], plan.kv_lens[part]))


def _masks_by_row(late: LateInputs, sampling: Sequence[int]) -> Mapping[int, Tensor]:
    """Each masked row's words; ``sampling`` are the rows of the plan that sample."""
    if not late.mask_rows:
        return {}
    words_RW = torch.frombuffer(bytearray(late.masks), dtype=torch.int32).view(len(late.mask_rows), -1)
    return {sampling[row]: words_W for row, words_W in zip(late.mask_rows, words_RW, strict=True)}
