"""How much KV cache fits: sizes of the groups, the longest sequence, and the refusal when the limits do not fit."""

from __future__ import annotations

import msgspec

from tgi_core.contract import KVGroup, KVGroupBudget, MemoryLine, ShardLimits
from tgi_core.errors import ExitCode, StartupError

ACTIVATIONS = "activations"
"""The memory table's line of what a step needs beside weights and cache; it grows with the step's tokens."""

STATES = "slot states"
"""The memory table's line of what slots keep whatever their length; it grows with the slots."""


class KVSizes(msgspec.Struct, frozen=True):
    """What was decided: blocks of each group and the longest sequence in tokens."""

    groups: list[KVGroupBudget]
    max_total_tokens: int

    @property
    def size_bytes(self) -> int:
        """Memory of all groups."""
        return sum(budget.blocks * budget.group.bytes_per_block for budget in self.groups)


def check_max_total_tokens(asked: int | None, model_max_tokens: int) -> None:
    """Refuse sequences that the model was not made for.

    Raises:
        StartupError: more tokens are asked for than it was made for.
    """
    if asked is not None and asked > model_max_tokens:
        raise StartupError(
            f"--max-total-tokens {asked} is more than the {model_max_tokens} tokens the model was made for.",
            f"Set it to {model_max_tokens} or less.",
            ExitCode.USAGE,
        )


def refuse_activations(limits: ShardLimits, weights_bytes: int) -> StartupError:
    """The refusal of a step that does not fit beside the weights, before there is any cache."""
    return StartupError(
        f"A step of {limits.max_step_tokens} tokens and {limits.max_slots} requests does not fit in memory beside "
        f"{weights_bytes / 2**20:,.1f} MiB of weights.",
        f"Lower --max-batch-prefill-tokens ({limits.max_step_tokens}) or --max-batch-size ({limits.max_slots}), or "
        "choose a smaller model.",
        ExitCode.MEMORY,
    )


def size_kv_cache(
    groups: list[KVGroup],
    limits: ShardLimits,
    model_max_tokens: int,
    available_bytes: int,
    memory: list[MemoryLine],
) -> KVSizes:
    """Divide ``available_bytes`` among the groups.

    Every group gets the same capacity in tokens, never more than all slots can use. A window group needs no more than
    its window and one step's tokens for each slot, and as much again for the prefix cache.

    Args:
        groups: the KV groups.
        limits: what the user asked for.
        model_max_tokens: the longest sequence the model was made for.
        available_bytes: for the cache, when ``limits.kv_cache_bytes`` names no size.
        memory: the lines of the memory table so far, for the refusal.

    Raises:
        StartupError: a sequence of the length asked for does not fit.
    """
    check_max_total_tokens(limits.max_total_tokens, model_max_tokens)
    wanted = limits.max_total_tokens or model_max_tokens
    budget_bytes = available_bytes if limits.kv_cache_bytes is None else limits.kv_cache_bytes
    capacity_blocks = _capacity_blocks(groups, limits, wanted, budget_bytes)
    capacity = capacity_blocks * limits.block_size
    shortest = limits.max_total_tokens or limits.block_size
    if capacity < shortest:
        needed_bytes = _bytes(groups, limits, -(-shortest // limits.block_size))
        table = [
            *memory,
            MemoryLine("kv cache, available", budget_bytes),
            MemoryLine("kv cache, needed", needed_bytes),
        ]
        raise _does_not_fit(limits, shortest, capacity, table)
    blocks = _blocks(groups, limits, capacity_blocks)
    return KVSizes([KVGroupBudget(*pair) for pair in zip(groups, blocks, strict=True)], min(wanted, capacity))


def _capacity_blocks(groups: list[KVGroup], limits: ShardLimits, wanted: int, budget_bytes: int) -> int:
    """The largest token capacity whose groups fit, in blocks; bytes grow with it, so halving the interval finds it."""
    low, high = 0, limits.max_slots * -(-wanted // limits.block_size)
    if limits.kv_cache_tokens is not None:
        high = min(high, -(-limits.kv_cache_tokens // limits.block_size))
    while low < high:
        middle = (low + high + 1) // 2
        if _bytes(groups, limits, middle) <= budget_bytes:
            low = middle
        else:
            high = middle - 1
    return low


def _blocks(groups: list[KVGroup], limits: ShardLimits, capacity_blocks: int) -> list[int]:
    blocks = []
    for group in groups:
        if group.window is None:
            blocks.append(capacity_blocks)
        else:
            per_slot = -(-(group.window + limits.max_step_tokens) // limits.block_size) + 1
            blocks.append(min(capacity_blocks, 2 * limits.max_slots * per_slot))
    return blocks


def _bytes(groups: list[KVGroup], limits: ShardLimits, capacity_blocks: int) -> int:
    blocks = _blocks(groups, limits, capacity_blocks)
    return sum(group.bytes_per_block * count for group, count in zip(groups, blocks, strict=True))


def _does_not_fit(limits: ShardLimits, wanted: int, capacity: int, table: list[MemoryLine]) -> StartupError:
    lines = "\n".join(f"  {line.name:<20} {line.size_bytes / 2**20:>12,.1f} MiB" for line in table)
    fix = f"Give the KV cache at least {table[-1].size_bytes} bytes"
    activations_bytes = sum(line.size_bytes for line in table if line.name == ACTIVATIONS)
    if limits.kv_cache_bytes is None and activations_bytes >= table[-1].size_bytes - table[-2].size_bytes:
        fix += f", lower --max-batch-prefill-tokens ({limits.max_step_tokens}), which sizes the activations"
    if any(line.name == STATES for line in table):
        fix += f", lower --max-batch-size ({limits.max_slots}), which sizes the slot states"
    if limits.max_total_tokens is not None and capacity:
        fix += f", or set --max-total-tokens to {capacity} or less"
    return StartupError(
        f"A sequence of {wanted} tokens does not fit in memory:\n{lines}\n",
        f"{fix}.",
        ExitCode.MEMORY,
    )
