"""The levels of the conformance kit."""

from __future__ import annotations

from enum import StrEnum


class Level(StrEnum):
    """What a group of the kit's tests needs of a backend; its plugin is looked at whatever the level.

    A backend that owns whole models has no kernels level, one that computes nothing only an engine level.
    """

    KERNELS = "kernels"
    """Each operation against the reference."""
    SHARD = "shard"
    """Whole tiny models against the reference backend; invariances; every capability."""
    ENGINE = "engine"
    """The life cycle: thousands of requests with cancellations and preemptions, faults, leaks."""
    PERF = "perf"
    """Figures against ceilings measured in the same run; nothing is judged."""
