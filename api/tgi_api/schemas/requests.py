"""Reply of the cancel route."""

from __future__ import annotations

import msgspec


class CancelledRequest(msgspec.Struct, frozen=True):
    """A request that was running, and how many of its generations were ended."""

    id: str
    cancelled: int
