"""The block pool: every block is in exactly one place."""

from __future__ import annotations

import pytest

from tgi_core.scheduler.blocks import BlockPool, OutOfBlocksError
from tgi_core.scheduler.prefix import extend_block_keys


def test_free_blocks_are_taken_before_cached_ones() -> None:
    pool = BlockPool(3)
    cached = pool.allocate()
    pool.register(cached, b"a")
    pool.release(cached)
    assert pool.num_available == 3
    assert cached not in {pool.allocate(), pool.allocate()}
    assert pool.find(b"a") == cached


def test_the_least_recently_used_cached_block_goes_first() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(), pool.allocate()
    pool.register(first, b"a")
    pool.register(second, b"b")
    pool.release(first)
    pool.release(second)
    pool.share(first)
    pool.release(first)
    assert pool.allocate() == second
    assert pool.find(b"b") is None
    assert pool.find(b"a") == first


def test_a_shared_block_is_free_when_its_last_owner_goes() -> None:
    pool = BlockPool(1)
    block = pool.allocate()
    pool.register(block, b"a")
    pool.share(block)
    pool.release(block)
    with pytest.raises(OutOfBlocksError):
        pool.allocate()
    pool.release(block)
    assert pool.allocate() == block


def test_of_equal_blocks_the_first_stays_registered() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(), pool.allocate()
    pool.register(first, b"a")
    pool.register(second, b"a")
    assert pool.find(b"a") == first
    pool.release(second)
    assert pool.num_available == 1


def test_a_key_stands_for_everything_before_its_block() -> None:
    one: list[bytes] = []
    two: list[bytes] = []
    extend_block_keys(one, [1, 2, 9, 9], 2, 2)
    extend_block_keys(two, [3, 4, 9, 9], 2, 2)
    assert one[1] != two[1]
    extended: list[bytes] = []
    extend_block_keys(extended, [1, 2, 9, 9], 1, 2)
    extend_block_keys(extended, [1, 2, 9, 9], 2, 2)
    assert extended == one
