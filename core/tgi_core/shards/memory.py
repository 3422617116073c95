"""How much KV cache fits: sizes of the groups, the longest sequence, and the refusal when the limits do not fit."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from tgi_core.contract import KVGroup, KVGroupBudget, MemoryLine, ShardLimits
from tgi_core.errors import ExitCode, StartupError

ACTIVATIONS = "activations"
"""The memory table's line of what a step needs beside weights and cache; it grows with the step's tokens."""

STATES = "slot states"
"""The memory table's line of what slots keep whatever their length; it grows with the slots."""

TOKENS_WITHOUT_CACHE = 1 << 15
"""The longest sequence where no layer attends and nobody asks for more: no cache bounds it, but every slot has a table
of its tokens, 128 KiB of this length."""


class KVSizes(msgspec.Struct, frozen=True):
    """What was decided: blocks of each group, the longest sequence and the longest input of an encoder, in tokens."""

    groups: list[KVGroupBudget]
    max_total_tokens: int
    max_encoder_tokens: int = 0

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


def decoder_limits(limits: ShardLimits, model_max_tokens: int, encoder_max_tokens: int) -> ShardLimits:
    """The limits where an encoder reads the prompt.

    ``--max-total-tokens`` then is the decoder's. In TGI it counts input and output together, so more than the decoder
    was made for is no mistake.
    """
    asked = limits.max_total_tokens
    if asked is None or asked > model_max_tokens + encoder_max_tokens:
        return limits
    return replace(limits, max_total_tokens=min(asked, model_max_tokens))


def refuse_activations(limits: ShardLimits, weights_bytes: int) -> StartupError:
    """The refusal of a step that does not fit beside the weights, before there is any cache."""
    return StartupError(
        f"A step of {limits.max_step_tokens} tokens and {limits.max_slots} requests does not fit in memory beside "
        f"{weights_bytes / 2**20:,.1f} MiB of weights.",
        f"Lower --max-batch-prefill-tokens ({limits.max_step_tokens}) or --max-batch-size ({limits.max_slots}), or "
        "choose a smaller model.",
        ExitCode.MEMORY,
    )


def check_states(limits: ShardLimits, memory: list[MemoryLine], free_bytes: int) -> None:
    """Refuse slot states that do not fit, whatever is left for the KV cache.

    Args:
        limits: what the user asked for.
        memory: the lines of the memory table so far, the weights first, which are in place.
        free_bytes: for all the others.

    Raises:
        StartupError: they do not fit; the message says how many slots would.
    """
    states_bytes = sum(line.size_bytes for line in memory if line.name == STATES)
    others_bytes = sum(line.size_bytes for line in memory[1:]) - states_bytes
    if states_bytes == 0 or states_bytes + others_bytes <= free_bytes:
        return
    # One slot more than users know of is for padding.
    fitting = (free_bytes - others_bytes) * (limits.max_slots + 1) // states_bytes - 1
    fix = "Choose a smaller model"
    if fitting > 0:
        fix = f"Set --max-batch-size to {fitting} or less"
    raise StartupError(
        f"The states of {limits.max_slots} requests do not fit in memory:\n"
        f"{_table([*memory, MemoryLine('available', max(0, free_bytes))])}\n",
        f"{fix}.",
        ExitCode.MEMORY,
    )


def longest_encoder_input(limits: ShardLimits, model_max_tokens: int) -> int:
    """What an encoder may read: all the model can, within what a step computes and what was asked for.

    Raises:
        StartupError: more is asked for.
    """
    asked, longest = limits.max_encoder_tokens, min(model_max_tokens, limits.max_step_tokens)
    if asked is None:
        return longest
    if asked > model_max_tokens:
        raise StartupError(
            f"--max-input-tokens {asked} is more than the {model_max_tokens} tokens that the model's encoder reads.",
            f"Set it to {model_max_tokens} or less.",
            ExitCode.USAGE,
        )
    if asked > longest:
        raise StartupError(
            f"An encoder reads its input in one step, so a step of {longest} tokens cannot hold one of {asked}.",
            f"Use --max-batch-prefill-tokens {asked} or more, or --max-input-tokens {longest} or less.",
            ExitCode.USAGE,
        )
    return asked


def size_kv_cache(
    groups: list[KVGroup],
    limits: ShardLimits,
    model_max_tokens: int,
    available_bytes: int,
    memory: list[MemoryLine],
    *,
    encoder_tokens: int = 0,
) -> KVSizes:
    """Divide ``available_bytes`` among the groups.

    Every group gets the same capacity in tokens, never more than all slots can use. A window group needs no more than
    its window and one step's tokens for each slot, and as much again for the prefix cache; a cross group holds each
    slot's input.

    Args:
        groups: the KV groups; none where no layer attends.
        limits: what the user asked for.
        model_max_tokens: the longest sequence the model was made for.
        available_bytes: for the cache, when ``limits.kv_cache_bytes`` names no size.
        memory: the lines of the memory table so far, for the refusal.
        encoder_tokens: the longest input of the encoder, for a model that has one.

    Raises:
        StartupError: a sequence of the length asked for does not fit.
    """
    check_max_total_tokens(limits.max_total_tokens, model_max_tokens)
    longest = model_max_tokens if groups else min(model_max_tokens, TOKENS_WITHOUT_CACHE)
    wanted = limits.max_total_tokens or longest
    budget_bytes = available_bytes if limits.kv_cache_bytes is None else limits.kv_cache_bytes
    blocks_for = _GroupBlocks(limits, wanted, encoder_tokens)
    capacity_blocks = _capacity_blocks(groups, blocks_for, budget_bytes)
    capacity = capacity_blocks * limits.block_size
    shortest = limits.max_total_tokens or limits.block_size
    if encoder_tokens:
        shortest = max(shortest, limits.max_encoder_tokens or 0)
    if capacity < shortest:
        needed_bytes = blocks_for.size_bytes(groups, -(-shortest // limits.block_size))
        table = [
            *memory,
            MemoryLine("kv cache, available", budget_bytes),
            MemoryLine("kv cache, needed", needed_bytes),
        ]
        raise _does_not_fit(limits, shortest, capacity, table)
    return KVSizes(
        [KVGroupBudget(group, blocks_for(group, capacity_blocks)) for group in groups],
        min(wanted, capacity),
        min(encoder_tokens, capacity),
    )


class _GroupBlocks:
    """How many blocks a group gets of a capacity: no more than all slots can use."""

    def __init__(self, limits: ShardLimits, max_tokens: int, encoder_tokens: int) -> None:
        self._limits = limits
        self._whole = -(-max_tokens // limits.block_size)
        self._encoder = -(-encoder_tokens // limits.block_size)

    def __call__(self, group: KVGroup, capacity_blocks: int) -> int:
        """Blocks of ``group`` where each group may have ``capacity_blocks``."""
        return min(capacity_blocks, self._limits.max_slots * self._per_slot(group))

    @property
    def most(self) -> int:
        """A capacity beyond which no group gets more."""
        most = self._limits.max_slots * max(self._whole, self._encoder)
        if self._limits.kv_cache_tokens is not None:
            most = min(most, -(-self._limits.kv_cache_tokens // self._limits.block_size))
        return most

    def size_bytes(self, groups: list[KVGroup], capacity_blocks: int) -> int:
        """Memory of all groups."""
        return sum(group.bytes_per_block * self(group, capacity_blocks) for group in groups)

    def _per_slot(self, group: KVGroup) -> int:
        if group.cross:
            return self._encoder
        if group.window is None:
            return self._whole
        return 2 * (-(-(group.window + self._limits.max_step_tokens) // self._limits.block_size) + 1)


def _capacity_blocks(groups: list[KVGroup], blocks_for: _GroupBlocks, budget_bytes: int) -> int:
    """The largest token capacity whose groups fit, in blocks; bytes grow with it, so halving the interval finds it."""
    low, high = 0, blocks_for.most
    while low < high:
        middle = (low + high + 1) // 2
        if blocks_for.size_bytes(groups, middle) <= budget_bytes:
            low = middle
        else:
            high = middle - 1
    return low


def _does_not_fit(limits: ShardLimits, wanted: int, capacity: int, table: list[MemoryLine]) -> StartupError:
    fix = f"Give the KV cache at least {table[-1].size_bytes} bytes"
    activations_bytes = sum(line.size_bytes for line in table if line.name == ACTIVATIONS)
    if limits.kv_cache_bytes is None and activations_bytes >= table[-1].size_bytes - table[-2].size_bytes:
        fix += f", lower --max-batch-prefill-tokens ({limits.max_step_tokens}), which sizes the activations"
    if any(line.name == STATES for line in table):
        fix += f", lower --max-batch-size ({limits.max_slots}), which sizes the slot states"
    if limits.max_total_tokens is not None and capacity:
        fix += f", or set --max-total-tokens to {capacity} or less"
    return StartupError(
        f"A sequence of {wanted} tokens does not fit in memory:\n{_table(table)}\n",
        f"{fix}.",
        ExitCode.MEMORY,
    )


def _table(memory: list[MemoryLine]) -> str:
    return "\n".join(f"  {line.name:<20} {line.size_bytes / 2**20:>12,.1f} MiB" for line in memory)
