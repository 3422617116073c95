"""Admission: how many generations may be in the server at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from tgi_core.errors import EngineUnavailableError, OverloadedError, ValidationError


class Permits:
    """A counter that is tried and never waited for: beyond the limit a request is told at once.

    Args:
        limit: how many may be in the server.
        kind: of what, as messages name it, with the flag that sets the limit.
    """

    def __init__(self, limit: int, kind: str = "generations (--max-concurrent-requests)") -> None:
        self._limit = limit
        self._kind = kind
        self._taken = 0
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def taken(self) -> int:
        """How many are in the server."""
        return self._taken

    @property
    def is_closed(self) -> bool:
        """Whether the server drains."""
        return self._closed

    def require(self, count: int) -> None:
        """Refuse a request that could never run, as it needs ``count`` permits.

        Raises:
            ValidationError: there are not so many, so it is no use to try again.
        """
        if count > self._limit:
            raise ValidationError(
                f"prompts times choices must be <= {self._limit} (--max-concurrent-requests). Given: {count}"
            )

    def take(self, count: int = 1, *, held: int = 0) -> None:
        """Take ``count`` permits or none, for a request that has taken ``held`` before.

        Raises:
            ValidationError: there are not so many, so it is no use to try again.
            OverloadedError: fewer than ``count`` are free.
            EngineUnavailableError: the server drains.
        """
        if self._closed:
            raise EngineUnavailableError("The server is shutting down")
        self.require(held + count)
        if self._taken + count > self._limit:
            raise OverloadedError(
                f"Model is overloaded: {self._taken} of at most {self._limit} {self._kind} are running, and the "
                f"request needs {count} more"
            )
        self._taken += count
        self._idle.clear()

    def release(self, count: int = 1) -> None:
        """Give ``count`` permits back."""
        self._taken -= count
        if self._taken == 0:
            self._idle.set()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """One permit for the length of a block; raises what ``take`` raises."""
        self.take()
        try:
            yield
        finally:
            self.release()

    def close(self) -> None:
        """Refuse every further request."""
        self._closed = True

    async def idle(self) -> None:
        """Wait until no permit is taken."""
        await self._idle.wait()
