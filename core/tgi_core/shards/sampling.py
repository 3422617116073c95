"""The second half of a step: masks, sampling, the new tokens into the tables and to the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tgi_core.contract import (
    Device,
    DeviceEvent,
    DeviceState,
    Kernels,
    LateInputs,
    PromptLogprobs,
    Sampled,
    StepPlan,
    StepResult,
    TopTokens,
)
from tgi_core.sampling.params import Tier
from tgi_core.shards.batch import sample_inputs
from tgi_core.shards.slots import SlotTable
from tgi_core.transfer import download, upload


class StepTokens(NamedTuple):
    """A step's tokens on their way to the host; readable once the event has been waited for.

    Attributes:
        sampled: one entry for each row that samples, skipped ones included.
        event: after the last copy.
        skipped_rows: rows that sat the sampling out.
    """

    sampled: Sampled
    event: DeviceEvent
    skipped_rows: Sequence[int] = ()


class Sampler:
    """Samples the steps of one shard.

    Args:
        device: records the events.
        kernels: sample and mask.
        state: the device tables.
        slots: the host's part of them.
    """

    def __init__(self, device: Device, kernels: Kernels, state: DeviceState, slots: SlotTable) -> None:
        self._device = device
        self._kernels = kernels
        self._state = state
        self._slots = slots

    def sample(self, plan: StepPlan, logits_BV: Tensor | None, slots_B: Tensor, late: LateInputs | None) -> StepTokens:
        """Launch the sampling of a step.

        Args:
            plan: the step.
            logits_BV: of the rows that sample; None when there are none. May be overwritten.
            slots_B: int64, their slots.
            late: what the host has made meanwhile.
        """
        if logits_BV is None:
            return StepTokens(Sampled(torch.empty(0, dtype=torch.int64), torch.empty(0)), self._device.record_event())
        state, kernels = self._state, self._kernels
        tier, raw_logits_BV = plan.tier, logits_BV
        if late is not None and late.mask_rows:
            if self._slots.report_raw(_sampling(plan, plan.slots)):
                # A mask stands between the model's own log-probabilities and the choice, whatever the tier.
                tier, raw_logits_BV = Tier.FULL, logits_BV.clone()
            logits_BV = self._mask(logits_BV, late)
        inputs = sample_inputs(state, slots_B, tier)
        if tier is Tier.FULL:
            slots = _sampling(plan, plan.slots)
            inputs = self._slots.full_inputs(inputs, state, slots, max(plan.kv_lens), raw_logits_BV)
        sampled = kernels.sample(logits_BV, inputs)
        skipped_rows = late.skipped_rows if late is not None else []
        if skipped_rows:
            slots_B = self._send_to_scratch(plan, skipped_rows)
        kernels.advance_tables(state.tokens_SL, state.lengths_S, slots_B, sampled.ids_B)
        return StepTokens(_download(sampled), self._device.record_event(), skipped_rows)

    def result(self, plan: StepPlan, tokens: StepTokens, prompt_logprobs: list[PromptLogprobs]) -> StepResult:
        """A collected step; ``tokens`` have arrived."""
        sampled = tokens.sampled
        slots, epochs = _sampling(plan, plan.slots), _sampling(plan, plan.epochs)
        token_ids, logprobs = sampled.ids_B.tolist(), sampled.logprobs_B.tolist()
        tops = self._tops(slots, sampled)
        if tokens.skipped_rows:
            rows = sorted(set(range(len(slots))) - set(tokens.skipped_rows))
            slots, epochs = [slots[row] for row in rows], [epochs[row] for row in rows]
            token_ids, logprobs = [token_ids[row] for row in rows], [logprobs[row] for row in rows]
            tops = [tops[row] for row in rows] if tops else []
        return StepResult(plan.step, slots, epochs, token_ids, logprobs, tops, prompt_logprobs)

    def _mask(self, logits_BV: Tensor, late: LateInputs) -> Tensor:
        device = logits_BV.device
        words_X = torch.frombuffer(bytearray(late.masks), dtype=torch.int32)
        masks_RW = upload(words_X.view(len(late.mask_rows), -1), device)
        return self._kernels.apply_bitmask(logits_BV, upload(torch.tensor(late.mask_rows), device), masks_RW)

    def _send_to_scratch(self, plan: StepPlan, skipped_rows: Sequence[int]) -> Tensor:
        """The slots whose tables take the new tokens: those of skipped rows stay as they are."""
        slots = _sampling(plan, plan.slots)
        for row in skipped_rows:
            slots[row] = len(self._state.lengths_S) - 1
        return upload(torch.tensor(slots), self._state.lengths_S.device)

    def _tops(self, slots: Sequence[int], sampled: Sampled) -> list[TopTokens | None]:
        if sampled.top_ids_RN is None or sampled.top_logprobs_RN is None:
            return []
        tops: list[TopTokens | None] = [None] * len(slots)
        rows = self._slots.whole_rows(slots)
        for row, ids, logprobs in zip(rows, sampled.top_ids_RN.tolist(), sampled.top_logprobs_RN.tolist(), strict=True):
            slot = self._slots[slots[row]]
            tops[row] = slot.trim(ids, logprobs) if slot.top_n else None
        return tops


def _download(sampled: Sampled) -> Sampled:
    copies = Sampled(download(sampled.ids_B), download(sampled.logprobs_B))
    if sampled.top_ids_RN is None or sampled.top_logprobs_RN is None:
        return copies
    return copies._replace(top_ids_RN=download(sampled.top_ids_RN), top_logprobs_RN=download(sampled.top_logprobs_RN))


def _sampling(plan: StepPlan, column: Sequence[int]) -> list[int]:
    """The entries of the rows that sample."""
    return [value for value, samples in zip(column, plan.samples, strict=True) if samples]
