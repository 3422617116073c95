"""Drives a shard by hand-made plans: allocates blocks, prefills in chunks, decodes, at depth 0 or 1."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tgi_core.contract import (
    AppendedBlocks,
    KVBudget,
    ModelShard,
    NewSlot,
    StepPlan,
    StepResult,
    Ticket,
    TopTokens,
)
from tgi_core.sampling.params import SamplingParams, Tier


class Generation:
    """One request: its prompt, how it is sampled, what came out.

    Args:
        prompt: its tokens.
        num_tokens: how many are to be made.
        sampling: greedy by default.
        output: tokens made before a preemption; they are computed again behind the prompt.
        start_step: the step before which it does not begin.
        prompt_logprobs: ask for those of the prompt's tokens.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        num_tokens: int,
        sampling: SamplingParams | None = None,
        *,
        output: Sequence[int] = (),
        start_step: int = 0,
        prompt_logprobs: bool = False,
    ) -> None:
        self.prompt = [*prompt, *output]
        self.prompt_len = len(prompt)
        self.num_tokens = num_tokens
        self.sampling = sampling or SamplingParams()
        self.start_step = start_step
        self.wants_prompt_logprobs = prompt_logprobs
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.tops: list[TopTokens] = []
        self.prompt_logprobs: list[float] = []
        self.computed = 0
        self.launched_tokens = 0
        self.blocks: list[list[int]] = []

    @property
    def known(self) -> int:
        """Tokens that are known or will be once what is launched has run."""
        return len(self.prompt) + self.launched_tokens

    @property
    def is_launched(self) -> bool:
        return self.launched_tokens == self.num_tokens


class Driver:
    """A scheduler without queue or preemption; every request must fit at once.

    Args:
        shard: loaded and warmed up.
        budget: what its warm-up returned.
        max_step_tokens: tokens of a step.
        depth: steps launched before the oldest is collected.
        seed: shuffles the physical blocks; window groups give theirs back and get other ones.
    """

    def __init__(
        self, shard: ModelShard, budget: KVBudget, *, max_step_tokens: int = 64, depth: int = 0, seed: int = 0
    ) -> None:
        self.shard = shard
        self.block_size = budget.block_size
        self.windows = [group.group.window for group in budget.groups]
        self.max_step_tokens = max_step_tokens
        self.depth = depth
        self._free = [list(range(group.blocks)) for group in budget.groups]
        shuffle = random.Random(seed)
        for free in self._free:
            shuffle.shuffle(free)
        self._step = 0

    def run(self, generations: Sequence[Generation]) -> None:
        """Generate all of them together; results are in the generations."""
        entered: set[int] = set()
        flights: list[tuple[Ticket, StepPlan]] = []
        for generation in generations:
            generation.blocks = [[] for _ in self.windows]
        while flights or not all(generation.is_launched for generation in generations):
            plan = self._plan(generations, entered)
            if plan is not None:
                ticket = self.shard.launch(plan)
                self.shard.sample(ticket, None)
                flights.append((ticket, plan))
            elif not flights:
                self._step += 1
                continue
            if len(flights) > self.depth or plan is None:
                self._apply(self.shard.collect(flights.pop(0)[0]), generations)
        for generation in generations:
            for free, blocks in zip(self._free, generation.blocks, strict=True):
                free.extend(block for block in blocks if block >= 0)

    def _plan(self, generations: Sequence[Generation], entered: set[int]) -> StepPlan | None:
        left = self.max_step_tokens
        decodes: list[tuple[int, int]] = []
        prefills: list[tuple[int, int]] = []
        for slot, generation in enumerate(generations):
            if generation.is_launched or left <= 0 or self._step < generation.start_step:
                continue
            q_len = min(generation.known - generation.computed, left)
            is_decode = generation.computed >= len(generation.prompt)
            (decodes if is_decode else prefills).append((slot, q_len))
            left -= q_len
        rows = decodes + prefills
        if not rows:
            return None
        new_slots, appended = [], []
        for slot, q_len in rows:
            generation = generations[slot]
            if slot not in entered:
                entered.add(slot)
                new_slots.append(NewSlot(slot, generation.prompt, generation.prompt_len, generation.sampling))
            appended += self._extend(slot, generation, generation.computed + q_len)
        samples = []
        for slot, q_len in rows:
            generation = generations[slot]
            generation.computed += q_len
            samples.append(generation.computed == generation.known)
            generation.launched_tokens += samples[-1]
        self._step += 1
        return StepPlan(
            step=self._step,
            slots=[slot for slot, _ in rows],
            epochs=[0] * len(rows),
            q_lens=[q_len for _, q_len in rows],
            kv_lens=[generations[slot].computed for slot, _ in rows],
            samples=samples,
            num_decodes=len(decodes),
            tier=max((generations[slot].sampling.tier for slot, _ in rows), default=Tier.GREEDY),
            new_slots=new_slots,
            appended_blocks=appended,
            prompt_logprobs=[
                len(decodes) + row for row, (slot, _) in enumerate(prefills) if generations[slot].wants_prompt_logprobs
            ],
        )

    def _extend(self, slot: int, generation: Generation, num_tokens: int) -> list[AppendedBlocks]:
        appended = []
        for group, (window, blocks) in enumerate(zip(self.windows, generation.blocks, strict=True)):
            if window is not None:
                first = max(0, generation.computed - window + 1) // self.block_size
                for column in range(min(first, len(blocks))):
                    if blocks[column] >= 0:
                        self._free[group].insert(0, blocks[column])
                        blocks[column] = -1
            start, end = len(blocks), -(-num_tokens // self.block_size)
            if end > start:
                blocks += [self._free[group].pop() for _ in range(end - start)]
                appended.append(AppendedBlocks(group, slot, start, blocks[start:]))
        return appended

    def _apply(self, result: StepResult, generations: Sequence[Generation]) -> None:
        for slot, token_id, logprob in zip(result.slots, result.token_ids, result.logprobs, strict=True):
            generations[slot].token_ids.append(token_id)
            generations[slot].logprobs.append(logprob)
        for slot, top in zip(result.slots, result.tops, strict=False):
            if top is not None:
                generations[slot].tops.append(top)
        for part in result.prompt_logprobs:
            known = generations[part.slot].prompt_logprobs
            assert part.start == len(known) + 1, "the first token has none, then each chunk goes on"
            known += part.logprobs
