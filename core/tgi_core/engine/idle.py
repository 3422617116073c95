"""When a shard may use idle time: pieces of its work cannot be interrupted, and whoever comes meanwhile waits."""

from __future__ import annotations

import math
import time

from tgi_core.contract import ModelShard


class IdleTime:
    """Gives the shard a piece of idle time after another.

    A piece begins when the engine has been idle for as long as the last one took. So programs that take seconds to
    compile do not fill the pauses between the requests of one client, and graphs that take milliseconds to record still
    do.
    """

    def __init__(self, shard: ModelShard) -> None:
        self._shard = shard
        self._wants_more = True
        self._last_s = 0.0
        self._idle_from: float | None = None

    def end(self) -> None:
        """There is something to do."""
        self._idle_from = None

    def use(self, timeout_ms: int) -> int:
        """The engine is idle, and would sleep for ``timeout_ms``; returns for how long it may."""
        if not self._wants_more:
            return timeout_ms
        now = time.monotonic()
        if self._idle_from is None:
            self._idle_from = now
        wait_s = self._idle_from + self._last_s - now
        if wait_s > 0:
            return min(timeout_ms, math.ceil(wait_s * 1000))
        self._wants_more = self._shard.use_idle_time()
        self._idle_from = time.monotonic()
        self._last_s = self._idle_from - now
        return 0
