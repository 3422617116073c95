"""A loaded transformers model with a cache for each slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tgi_core.models.fallback.own_cache.forward import Forward, Padding
from tgi_core.models.fallback.own_cache.rows import merge_caches, split_cache
from tgi_core.models.fallback.own_cache.trial import Abilities, pad
from tgi_core.models.step import EncoderStep, Step

MOST_PADDING = 1.5
"""Tokens that a batch holds, padding included, as a multiple of those that its rows have."""


class _Alone:
    """The cache of one slot and the tokens that it holds."""

    def __init__(self, cache: Any, length: int) -> None:
        self.cache = cache
        self.length = length


class _Batch:
    """Slots that decode together, in the order of the batch's rows."""

    def __init__(self, slots: tuple[int, ...], lengths: list[int], cache: Any, device: torch.device) -> None:
        self.slots = slots
        self.lengths = lengths
        self.cache = cache
        self.padding = pad(lengths, device)

    def advance(self) -> None:
        """Each row has one more token."""
        self.lengths = [length + 1 for length in self.lengths]
        mask_BL, positions_B1 = self.padding
        self.padding = Padding(torch.cat((mask_BL, mask_BL[:, -1:]), dim=1), positions_B1 + 1)


class OwnCacheDecoder:
    """Runs prompts alone and decoding rows in padded batches, each as far as ``abilities`` allow.

    A batch lasts as long as the same slots decode. The head is part of the model's forward, so ``hidden`` gives logits
    and ``logits`` hands them on.

    Args:
        forward: of the model.
        abilities: what it can.
        logits_V: a row of its logits.
    """

    def __init__(self, forward: Forward, abilities: Abilities, logits_V: Tensor) -> None:
        self.hidden_E = logits_V
        self._forward = forward
        self._abilities = abilities
        self._alone: dict[int, _Alone] = {}
        self._batches: dict[tuple[int, ...], _Batch] = {}
        self._ids: dict[int, Tensor] = {}
        self._reading: dict[int, Forward] = {}

    def free(self, slots: Sequence[int]) -> None:
        """What these slots held is given back; the next token of each is its first."""
        gone = set(slots)
        for batch in list(self._batches.values()):
            if gone.intersection(batch.slots):
                self._dissolve(batch)
        for slot in slots:
            self._alone.pop(slot, None)
            self._ids.pop(slot, None)
            self._reading.pop(slot, None)

    def read(self, slot: int, ids_L: Tensor) -> None:
        """Of a model with an encoder: compute the input of a slot."""
        self._reading[slot] = self._forward.reading(ids_L)

    def hidden(self, step: Step) -> Tensor:
        """See ``LoadedModel``."""
        rows: list[Tensor] = list(torch.split(step.ids_T.long(), list(step.rows.q_lens)))
        slots = step.rows.slots
        if not self._abilities.caches:
            return torch.cat([self._recompute(slot, ids_T) for slot, ids_T in zip(slots, rows, strict=True)])
        together = {}
        for row, (slot, ids_T) in enumerate(zip(slots, rows, strict=True)):
            if self._abilities.batches and len(ids_T) == 1 and self._length(slot):
                together[slot] = row
            else:
                rows[row] = self._run_alone(slot, ids_T)
        for batch_slots in _partition({slot: self._length(slot) for slot in together}):
            ids_B = torch.cat([rows[together[slot]] for slot in batch_slots])
            logits_BV = self._run_batch(batch_slots, ids_B)
            for slot, logits_1V in zip(batch_slots, torch.split(logits_BV, 1), strict=True):
                rows[together[slot]] = logits_1V
        return torch.cat(rows)

    def logits(self, hidden_BE: Tensor) -> Tensor:
        """See ``LoadedModel``."""
        return hidden_BE

    def _length(self, slot: int) -> int:
        """Tokens in the slot's cache."""
        if slot in self._alone:
            return self._alone[slot].length
        batch = self._batch_of(slot)
        return 0 if batch is None else batch.lengths[batch.slots.index(slot)]

    def _batch_of(self, slot: int) -> _Batch | None:
        return next((batch for batch in self._batches.values() if slot in batch.slots), None)

    def _recompute(self, slot: int, ids_T: Tensor) -> Tensor:
        known_T = self._ids[slot] = torch.cat((self._ids[slot], ids_T)) if slot in self._ids else ids_T
        return self._reading.get(slot, self._forward).whole(known_T[None])[0, -len(ids_T) :]

    def _run_alone(self, slot: int, ids_T: Tensor) -> Tensor:
        batch = self._batch_of(slot)
        if batch is not None:
            self._dissolve(batch)
        held = self._alone.setdefault(slot, _Alone(None, 0))
        assert len(ids_T) == 1 or held.length == 0 or self._abilities.chunks, "the shard said that prompts come whole"
        forward = self._reading.get(slot, self._forward)
        logits_1TV, held.cache = forward.go_on(ids_T[None], held.cache, held.length)
        held.length += len(ids_T)
        return logits_1TV[0]

    def _run_batch(self, slots: tuple[int, ...], ids_B: Tensor) -> Tensor:
        if len(slots) == 1:
            return self._run_alone(slots[0], ids_B)
        batch = self._batches.get(slots) or self._form(slots, ids_B.device)
        logits_B1V, batch.cache = self._forward.go_on(ids_B[:, None], batch.cache, max(batch.lengths), batch.padding)
        batch.advance()
        return logits_B1V[:, 0]

    def _form(self, slots: tuple[int, ...], device: torch.device) -> _Batch:
        for batch in list(self._batches.values()):
            if set(slots).intersection(batch.slots):
                self._dissolve(batch)
        held = [self._alone.pop(slot) for slot in slots]
        lengths = [row.length for row in held]
        batch = _Batch(slots, lengths, merge_caches([row.cache for row in held], lengths), device)
        self._batches[slots] = batch
        return batch

    def _dissolve(self, batch: _Batch) -> None:
        del self._batches[batch.slots]
        caches = split_cache(batch.cache, batch.lengths)
        for slot, length, cache in zip(batch.slots, batch.lengths, caches, strict=True):
            self._alone[slot] = _Alone(cache, length)


class OwnEncoder:
    """The encoder's side of a decoder with its own cache; see ``Encoder``."""

    def __init__(self, decoder: OwnCacheDecoder, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self._decoder = decoder

    def __call__(self, step: EncoderStep) -> None:
        for slot, ids_L in zip(step.slots, torch.split(step.ids_T.long(), list(step.lens)), strict=True):
            self._decoder.read(slot, ids_L)


def _partition(lengths: dict[int, int]) -> list[tuple[int, ...]]:
    """Slots that go together: the longest first, as long as padding stays within ``MOST_PADDING``."""
    groups: list[tuple[int, ...]] = []
    group: list[int] = []
    total = longest = 0
    for slot in sorted(lengths, key=lambda slot: (-lengths[slot], slot)):
        if group and longest * (len(group) + 1) > MOST_PADDING * (total + lengths[slot]):
            groups.append(tuple(group))
            group, total = [], 0
        longest = lengths[slot] if not group else longest
        group.append(slot)
        total += lengths[slot]
    return [*groups, tuple(group)] if group else groups
