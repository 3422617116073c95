"""A model in plain Python whose next token is a hash of everything it reads through its block tables.

It keeps a real paged cache whose entries, like keys and values, depend on everything before them, so a wrong block, a
block shared under a wrong key or freed too soon changes the output.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from hashlib import blake2b

from tgi_core.contract import KVBudget, KVGroup, KVGroupBudget, NewSlot, PromptLogprobs, StepPlan, StepResult

VOCAB = 50
STALE = -7


def make_budget(
    block_size: int, blocks: list[int], windows: list[int | None], max_total_tokens: int, cross_blocks: int = 0
) -> KVBudget:
    """A budget with one group for each entry of ``blocks``, and one of ``cross_blocks`` for an encoder if there are."""
    groups = [KVGroupBudget(KVGroup(window, 1), count) for count, window in zip(blocks, windows, strict=True)]
    if cross_blocks:
        groups.append(KVGroupBudget(KVGroup(None, 1, cross=True), cross_blocks))
    return KVBudget(block_size, groups, max_total_tokens, [], max_encoder_tokens=cross_blocks * block_size)


def next_token(entries: list[int]) -> int:
    """The model: any change of what it reads changes the token, with high probability."""
    return _hash(entries) % VOCAB


def cache_entries(tokens: list[int]) -> list[int]:
    """What the cache holds for each position: a chain over the tokens so far."""
    entries = []
    parent = 0
    for token in tokens:
        parent = _hash([parent, token])
        entries.append(parent)
    return entries


def _hash(values: list[int]) -> int:
    return int.from_bytes(blake2b(repr(values).encode(), digest_size=6).digest(), "little")


def solo_output(
    prompt: list[int],
    max_new_tokens: int,
    eos: frozenset[int],
    windows: list[int | None],
    encoder_ids: Sequence[int] = (),
) -> list[int]:
    """What a request gives when nothing else runs."""
    tokens = list(prompt)
    while len(tokens) - len(prompt) < max_new_tokens:
        view = _visible(cache_entries(tokens), windows) + cache_entries([*encoder_ids])
        tokens.append(next_token(view))
        if tokens[-1] in eos:
            break
    return tokens[len(prompt) :]


def _visible(entries: list[int], windows: list[int | None]) -> list[int]:
    view: list[int] = []
    for window in windows:
        view += entries if window is None else entries[-window:]
    return view


class PagedModel:
    """Executes plans in launch order, as a device's stream does; tokens become readable at ``collect``."""

    def __init__(self, budget: KVBudget, max_slots: int) -> None:
        self.budget = budget
        self.groups = [group.group for group in budget.groups]
        self.tokens: list[dict[int, int]] = [{} for _ in range(max_slots)]
        self.known = [0] * max_slots
        self.encoder_lens = [0] * max_slots
        self.tables: list[list[dict[int, int]]] = [[{} for _ in range(max_slots)] for _ in budget.groups]
        self.cache = [[STALE] * (group.blocks * budget.block_size) for group in budget.groups]
        self.results: deque[StepResult] = deque()
        self.slots_in_flight: deque[set[int]] = deque()

    def launch(self, plan: StepPlan, skipped_rows: Collection[int] = ()) -> None:
        """Run one step; ``skipped_rows``, counted among those that sample, sit the sampling out."""
        for new in plan.new_slots:
            assert not any(new.slot in slots for slots in self.slots_in_flight), "slot reused before its collect"
            self._enter(new)
        for entry in plan.appended_blocks:
            for column, block in enumerate(entry.block_ids, entry.start):
                self.tables[entry.group][entry.slot][column] = block
        for new in plan.new_slots:
            self._encode(new)
        assert len(set(plan.slots)) == len(plan.slots)
        token_ids = []
        slots, epochs = [], []
        prompt_logprobs = []
        sampled = 0
        for slot, epoch, q_len, kv_len, samples in zip(
            plan.slots, plan.epochs, plan.q_lens, plan.kv_lens, plan.samples, strict=True
        ):
            entries = cache_entries([self.tokens[slot][position] for position in range(kv_len)])
            for position in range(kv_len - q_len, kv_len):
                self._write(slot, position, entries[position])
            if samples:
                sampled += 1
                assert kv_len == self.known[slot], "only the newest position is sampled"
                if sampled - 1 in skipped_rows:
                    continue
                token = next_token(self._read(slot, kv_len))
                self.tokens[slot][kv_len] = token
                self.known[slot] = kv_len + 1
                token_ids.append(token)
                slots.append(slot)
                epochs.append(epoch)
        for row in plan.prompt_logprobs:
            slot, kv_len = plan.slots[row], plan.kv_lens[row]
            start = kv_len - plan.q_lens[row] + 1
            known = [self.tokens[slot][position] for position in range(start, min(kv_len + 1, self.known[slot]))]
            prompt_logprobs.append(PromptLogprobs(slot, plan.epochs[row], start, [-float(token) for token in known]))
        assert all(q_len == 1 for q_len in plan.q_lens[: plan.num_decodes])
        logprobs = [-1.0] * len(token_ids)
        self.results.append(StepResult(plan.step, slots, epochs, token_ids, logprobs, prompt_logprobs=prompt_logprobs))
        self.slots_in_flight.append(set(plan.slots))

    def collect(self) -> StepResult:
        """The oldest step's tokens."""
        self.slots_in_flight.popleft()
        return self.results.popleft()

    def _enter(self, new: NewSlot) -> None:
        self.tokens[new.slot] = dict(enumerate(new.token_ids))
        self.known[new.slot] = len(new.token_ids)
        self.encoder_lens[new.slot] = len(new.encoder_ids)
        for tables in self.tables:
            tables[new.slot] = {}

    def _encode(self, new: NewSlot) -> None:
        for group, cache in enumerate(self.cache):
            if self.groups[group].cross:
                for position, entry in enumerate(cache_entries(new.encoder_ids)):
                    cache[self._index(group, new.slot, position)] = entry

    def _index(self, group: int, slot: int, position: int) -> int:
        block = self.tables[group][slot][position // self.budget.block_size]
        return block * self.budget.block_size + position % self.budget.block_size

    def _write(self, slot: int, position: int, entry: int) -> None:
        for group, cache in enumerate(self.cache):
            if not self.groups[group].cross:
                cache[self._index(group, slot, position)] = entry

    def _read(self, slot: int, kv_len: int) -> list[int]:
        view: list[int] = []
        for group, kind in enumerate(self.groups):
            end = self.encoder_lens[slot] if kind.cross else kv_len
            first = 0 if kind.window is None else max(0, end - kind.window)
            view += [self.cache[group][self._index(group, slot, position)] for position in range(first, end)]
        return view
