"""Which implementation of attention a shard runs: what a backend offers and what was chosen of it, once, at start."""

from __future__ import annotations

import msgspec

from tgi_core.contract.kernels import AttentionSpec


class AttentionUse(msgspec.Struct, frozen=True, kw_only=True):
    """What a model asks of attention.

    Attributes:
        specs: one for each KV group.
        dtype: name of the type of queries, keys and values.
        block_size: tokens in a KV block.
    """

    specs: tuple[AttentionSpec, ...]
    dtype: str
    block_size: int


class AttentionOption(msgspec.Struct, frozen=True, kw_only=True):
    """One implementation of attention, seen for one model on one device.

    Attributes:
        name: what ``--attention`` takes.
        obstacle: why it cannot be used, to follow "because"; "" when it can.
        fix: what would help, one sentence; may be "".
        automatic: ``--attention auto`` may take it.
        remark: what is known of its speed, or else what it is.
    """

    name: str
    obstacle: str = ""
    fix: str = ""
    automatic: bool = True
    remark: str = ""


class AttentionChoice(msgspec.Struct, frozen=True):
    """The implementation that a shard is built with, why it, and for which use it was checked."""

    name: str
    reason: str
    use: AttentionUse
