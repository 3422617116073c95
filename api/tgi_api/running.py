"""The calls that are running, by id, so that they can be cancelled."""

from __future__ import annotations

from typing import Protocol


class Cancellable(Protocol):
    """A call that can be ended from outside."""

    def cancel(self) -> int:
        """End it; how many generations that ended."""


class RunningCalls:
    """Running calls by their ids. Clients choose ids, so several calls may share one."""

    def __init__(self) -> None:
        self._calls: dict[str, list[Cancellable]] = {}

    def add(self, request_id: str, call: Cancellable) -> None:
        """The call has begun."""
        self._calls.setdefault(request_id, []).append(call)

    def remove(self, request_id: str, call: Cancellable) -> None:
        """The call has ended."""
        calls = self._calls[request_id]
        calls.remove(call)
        if not calls:
            del self._calls[request_id]

    def cancel(self, request_id: str) -> int | None:
        """End the calls of that id; how many generations that ended, or None when no such call runs."""
        calls = self._calls.get(request_id)
        return None if calls is None else sum(call.cancel() for call in list(calls))
