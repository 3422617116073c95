"""The KV blocks of one group: free, in use, or unused but still holding content somebody may ask for again."""

from __future__ import annotations

from collections import OrderedDict, deque


class OutOfBlocksError(Exception):
    """No block is free or evictable; the scheduler preempts someone and tries again."""


class BlockPool:
    """Reference-counted blocks with a least-recently-used order of those that only the prefix cache holds.

    A block is in exactly one of three places: in ``_free`` (no content of use), in ``_cached`` (no owner, but
    registered under a key), or owned by one or more requests.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = deque(range(num_blocks))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._owners = [0] * num_blocks
        self._key_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}

    @property
    def num_available(self) -> int:
        """Blocks that can be handed out, counting those the prefix cache would lose."""
        return len(self._free) + len(self._cached)

    @property
    def num_used(self) -> int:
        """Blocks that requests own."""
        return self.num_blocks - self.num_available

    def allocate(self) -> int:
        """A block for one owner; evicts the least recently used cached one when none is free."""
        if self._free:
            block = self._free.popleft()
        elif self._cached:
            block, _ = self._cached.popitem(last=False)
            self._forget(block)
        else:
            raise OutOfBlocksError
        self._owners[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more owner of a registered block."""
        if self._owners[block] == 0:
            del self._cached[block]
        self._owners[block] += 1

    def release(self, block: int) -> None:
        """One owner less; the last one leaves a registered block to the prefix cache."""
        self._owners[block] -= 1
        if self._owners[block] > 0:
            return
        if block in self._key_of:
            self._cached[block] = None
        else:
            self._free.append(block)

    def is_owned(self, block: int) -> bool:
        """Whether a request holds the block."""
        return self._owners[block] > 0

    def find(self, key: bytes) -> int | None:
        """The block registered under ``key``."""
        return self._block_of.get(key)

    def register(self, block: int, key: bytes) -> None:
        """Offer an owned, full and computed block under ``key``. The first of equal blocks stays the registered one."""
        if key not in self._block_of and block not in self._key_of:
            self._block_of[key] = block
            self._key_of[block] = key

    def _forget(self, block: int) -> None:
        del self._block_of[self._key_of.pop(block)]
