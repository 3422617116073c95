"""The paged KV cache as the scheduler sees it: one block pool a group, block tables of requests, prefix hits."""

from __future__ import annotations

from tgi_core.contract import AppendedBlocks, KVBudget
from tgi_core.scheduler.blocks import BlockPool, OutOfBlocksError
from tgi_core.scheduler.prefix import extend_block_keys
from tgi_core.scheduler.request import Request


class KVCache:
    """Hands blocks to requests, takes them back and finds shared prefixes.

    Every group has a pool of its own with the same block size. A full group keeps all blocks of a request; a window
    group gives those back that no later token can see; a cross group holds the encoder's tokens, all at once.
    """

    def __init__(self, budget: KVBudget, *, prefix_cache: bool) -> None:
        self.block_size = budget.block_size
        self.crosses = [group.group.cross for group in budget.groups]
        # What a decoder's block holds depends on the encoder's input, which its key does not tell.
        self.prefix_cache = prefix_cache and not budget.has_states and not any(self.crosses)
        self.windows = [group.group.window for group in budget.groups]
        self.pools = [BlockPool(group.blocks) for group in budget.groups]
        # What gauges speak of: blocks that last as long as their request, if any layer sees everything.
        lasting = [pool for pool, grows in zip(self.pools, self._keeps_and_grows(), strict=True) if grows]
        self.main_pool = [*lasting, *self.pools, BlockPool(0)][0]
        self._pending: dict[bytes, Request] = {}

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that ``num_tokens`` fill, the last one perhaps in part."""
        return -(-num_tokens // self.block_size)

    def has_room(self, request: Request, promised_blocks: int) -> bool:
        """Whether the request's known tokens and one more fit beside what is promised to others.

        Only the full groups are asked: window groups give back as they go. Prefix hits are not counted, so the answer
        errs on the safe side by blocks that are cached, never by blocks that are in use.
        """
        needed, encoder_blocks = self.num_blocks_for(request.total + 1), self.num_blocks_for(len(request.encoder_ids))
        return all(
            pool.num_available - promised_blocks >= self._needed_in_group(pool, request, needed)
            for pool, grows in zip(self.pools, self._keeps_and_grows(), strict=True)
            if grows
        ) and all(
            pool.num_available >= encoder_blocks for pool, cross in zip(self.pools, self.crosses, strict=True) if cross
        )

    def _keeps_and_grows(self) -> list[bool]:
        """For each group whether it keeps all blocks of a sequence that grows."""
        return [window is None and not cross for window, cross in zip(self.windows, self.crosses, strict=True)]

    def _needed_in_group(self, pool: BlockPool, request: Request, needed: int) -> int:
        if not self.prefix_cache:
            return needed
        # A hit on a block that others own costs nothing; a hit on a cached one takes it from the available.
        self._know_keys(request)
        owned = 0
        for key in request.block_keys:
            block = pool.find(key)
            if block is None:
                break
            owned += pool.is_owned(block)
        return needed - owned

    def match_prefix(self, request: Request) -> int:
        """Give the request the longest cached prefix that holds in every group; returns its length in tokens.

        At least one token is left to compute, since its logits are needed.
        """
        request.block_ids = [[] for _ in self.pools]
        # Log-probabilities of a prompt come from computing it.
        if not self.prefix_cache or request.needs_prompt_logprobs:
            return 0
        self._know_keys(request)
        keys = request.block_keys
        num_blocks = 0
        limit = (request.total - 1) // self.block_size
        while num_blocks < limit and self._is_cached_in_full_groups(keys[num_blocks]):
            num_blocks += 1
        while num_blocks and not self._holds_in_window_groups(keys, num_blocks):
            num_blocks -= 1
        for pool, window, blocks in zip(self.pools, self.windows, request.block_ids, strict=True):
            first = self._first_needed_block(num_blocks * self.block_size, window)
            blocks.extend([-1] * min(first, num_blocks))
            for key in keys[first:num_blocks]:
                block = pool.find(key)
                assert block is not None, "a matched key is registered in every group"
                pool.share(block)
                blocks.append(block)
        request.registered = num_blocks
        request.capacity = num_blocks * self.block_size
        return request.capacity

    def hold_encoder(self, request: Request) -> list[AppendedBlocks]:
        """The blocks of the encoder's tokens, for as long as the request keeps its slot; there is room for them."""
        appended = []
        num_blocks = self.num_blocks_for(len(request.encoder_ids))
        for group, (pool, cross) in enumerate(zip(self.pools, self.crosses, strict=True)):
            if cross:
                request.block_ids[group] = [pool.allocate() for _ in range(num_blocks)]
                appended.append(AppendedBlocks(group, request.slot, 0, list(request.block_ids[group])))
        return appended

    def matched_blocks(self, request: Request) -> list[AppendedBlocks]:
        """The blocks of a fresh prefix hit, as the plan tells them to the device."""
        appended = []
        for group, blocks in enumerate(request.block_ids):
            first = next((index for index, block in enumerate(blocks) if block >= 0), len(blocks))
            if first < len(blocks):
                appended.append(AppendedBlocks(group, request.slot, first, blocks[first:]))
        return appended

    def waits_for_other(self, request: Request) -> bool:
        """Whether the next block this request would compute is being computed for an identical prefix right now."""
        if not self.prefix_cache or not self._pending or request.needs_prompt_logprobs:
            return False
        self._know_keys(request)
        limit = (request.total - 1) // self.block_size
        for key in request.block_keys[:limit]:
            if key in self._pending:
                return True
            if not self._is_cached_in_full_groups(key):
                return False
        return False

    def announce(self, request: Request) -> None:
        """The request starts to compute its unmatched full prompt blocks; equal prompts may wait for them."""
        if self.prefix_cache:
            for key in request.block_keys[request.registered :]:
                self._pending.setdefault(key, request)

    def extend(self, request: Request, num_tokens: int) -> list[AppendedBlocks]:
        """Make the blocks cover ``num_tokens``, after giving back what the windows have left behind.

        Raises:
            OutOfBlocksError: a group has none left; the request keeps what it has got so far.
        """
        appended: list[AppendedBlocks] = []
        num_blocks = self.num_blocks_for(num_tokens)
        for group, (pool, window, blocks) in enumerate(zip(self.pools, self.windows, request.block_ids, strict=True)):
            if window is not None:
                self._leave_window(pool, blocks, self._first_needed_block(request.computed, window))
            if num_blocks <= len(blocks) or self.crosses[group]:
                continue
            start = len(blocks)
            try:
                for _ in range(num_blocks - start):
                    blocks.append(pool.allocate())
            except OutOfBlocksError:
                # What was allocated is not yet in any plan: hand it back, so that the next try is told whole.
                for block in blocks[start:]:
                    pool.release(block)
                del blocks[start:]
                self._undo(request, appended)
                raise
            appended.append(AppendedBlocks(group, request.slot, start, blocks[start:]))
        request.capacity = num_blocks * self.block_size
        return appended

    def _undo(self, request: Request, appended: list[AppendedBlocks]) -> None:
        for entry in appended:
            blocks = request.block_ids[entry.group]
            for block in blocks[entry.start :]:
                self.pools[entry.group].release(block)
            del blocks[entry.start :]

    def register_collected(self, request: Request) -> None:
        """Offer the blocks that collected steps have filled to the prefix cache."""
        num_blocks = request.collected // self.block_size
        if not self.prefix_cache or num_blocks <= request.registered:
            return
        extend_block_keys(request.block_keys, request.token_ids, num_blocks, self.block_size)
        for index in range(request.registered, num_blocks):
            key = request.block_keys[index]
            for pool, blocks in zip(self.pools, request.block_ids, strict=True):
                if blocks[index] >= 0:
                    pool.register(blocks[index], key)
            if self._pending.get(key) is request:
                del self._pending[key]
        request.registered = num_blocks

    def release(self, request: Request) -> None:
        """Take all blocks back."""
        for pool, blocks in zip(self.pools, request.block_ids, strict=True):
            # From the end, so that the cache evicts the tail of a prefix before its head.
            for block in reversed(blocks):
                if block >= 0:
                    pool.release(block)
        request.block_ids = [[] for _ in self.pools]
        if self._pending:
            for key in request.block_keys[request.registered :]:
                if self._pending.get(key) is request:
                    del self._pending[key]

    def _know_keys(self, request: Request) -> None:
        num_blocks = len(request.token_ids) // self.block_size
        if num_blocks > len(request.block_keys):
            extend_block_keys(request.block_keys, request.token_ids, num_blocks, self.block_size)

    def _is_cached_in_full_groups(self, key: bytes) -> bool:
        return all(
            pool.find(key) is not None for pool, window in zip(self.pools, self.windows, strict=True) if window is None
        )

    def _holds_in_window_groups(self, keys: list[bytes], num_blocks: int) -> bool:
        return all(
            pool.find(key) is not None
            for pool, window in zip(self.pools, self.windows, strict=True)
            if window is not None
            for key in keys[self._first_needed_block(num_blocks * self.block_size, window) : num_blocks]
        )

    def _first_needed_block(self, position: int, window: int | None) -> int:
        """The first block that a query at ``position`` or later can see."""
        if window is None:
            return 0
        return max(0, position - window + 1) // self.block_size

    @staticmethod
    def _leave_window(pool: BlockPool, blocks: list[int], first_needed: int) -> None:
        index = min(first_needed, len(blocks)) - 1
        while index >= 0 and blocks[index] >= 0:
            pool.release(blocks[index])
            blocks[index] = -1
            index -= 1
