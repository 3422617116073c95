"""Idle time goes to the shard in pieces that few requests wait for."""

from __future__ import annotations

import time
from typing import cast

import pytest

from tgi_core.contract import ModelShard
from tgi_core.engine.idle import IdleTime


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Compiling:
    """A shard with three pieces of work, each of two seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.left = 3

    def use_idle_time(self) -> bool:
        self._clock.now_s += 2
        self.left -= 1
        return self.left > 0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def test_a_piece_waits_for_as_long_as_the_last_took(clock: Clock) -> None:
    shard = Compiling(clock)
    idle = IdleTime(cast(ModelShard, shard))
    assert (idle.use(500), shard.left) == (0, 2)
    assert (idle.use(500), shard.left) == (500, 2)
    clock.now_s += 1.875
    assert (idle.use(500), shard.left) == (125, 2)
    clock.now_s += 0.2
    assert (idle.use(500), shard.left) == (0, 1)


def test_a_request_makes_the_wait_begin_anew(clock: Clock) -> None:
    shard = Compiling(clock)
    idle = IdleTime(cast(ModelShard, shard))
    idle.use(500)
    for _ in range(5):
        clock.now_s += 1.5
        assert (idle.use(500), shard.left) == (500, 2)
        idle.end()
    clock.now_s += 2.5
    # The engine may have slept meanwhile, but was busy before.
    assert (idle.use(500), shard.left) == (500, 2)


def test_a_shard_that_wants_no_more_is_left_alone(clock: Clock) -> None:
    shard = Compiling(clock)
    idle = IdleTime(cast(ModelShard, shard))
    for _ in range(3):
        clock.now_s += 5
        idle.use(500)
    clock.now_s += 5
    idle.use(500)
    clock.now_s += 5
    assert (idle.use(500), shard.left) == (500, 0)
