"""The static shapes of a bucketed shard: a bounded list, and which of them a step takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tgi_core.contract import BucketRules, Ladder

COVER_SHAPES = 2
"""How many of the first shapes together take any step."""


class ForwardShape(NamedTuple):
    """A forward's shape: rows, tokens a row computes, and columns of its block tables."""

    rows: int
    q_len: int
    columns: int

    def covers(self, other: ForwardShape) -> bool:
        """Whether a step of the other shape fits into this one, padded."""
        return self.rows >= other.rows and self.q_len >= other.q_len and self.columns >= other.columns

    @property
    def cost(self) -> int:
        """Keys that its attention looks at, for which shape of several is the cheapest."""
        return self.rows * self.q_len * self.columns


class ShapeLimits(NamedTuple):
    """The largest step: slots, tokens, tokens in one row of it, and columns of a block table."""

    max_slots: int
    max_step_tokens: int
    max_q_len: int
    max_columns: int


def sizes(rules: Ladder, largest: int) -> list[int]:
    """The sizes of one dimension, ascending; the last is ``largest``."""
    found = []
    value = rules.smallest
    while value < largest:
        found.append(value)
        grown = value * rules.growth
        value = grown if rules.step is None else min(grown, value + rules.step)
    return [*found, largest]


def forward_shapes(limits: ShapeLimits, rules: BucketRules, block_size: int) -> list[ForwardShape]:
    """Every shape of a forward, in the order in which they should become ready.

    The first of them together take any step, if need be a row at a time: the longest prefill of one row and the
    largest decode. Then the cheap ones, which most steps are.
    """
    decode_columns = sizes(rules.decode_blocks, limits.max_columns)
    shapes = {
        ForwardShape(rows, 1, width) for rows in sizes(rules.decode_rows, limits.max_slots) for width in decode_columns
    }
    prefill_columns = sizes(rules.prefill_columns, limits.max_columns)
    for q_len in sizes(rules.prefill_lengths, limits.max_q_len):
        most_rows = min(limits.max_slots, max(1, limits.max_step_tokens // q_len))
        for rows in sizes(rules.prefill_rows, most_rows):
            # A row has at least as many keys as tokens.
            shapes |= {ForwardShape(rows, q_len, width) for width in prefill_columns if width * block_size >= q_len}
    cover = [
        ForwardShape(limits.max_slots, 1, limits.max_columns),
        ForwardShape(1, limits.max_q_len, limits.max_columns),
    ]
    rest = sorted(shapes.difference(cover), key=lambda shape: (shape.cost, shape))
    return [*cover, *rest]


def cheapest(shapes: Iterable[ForwardShape], needed: ForwardShape) -> ForwardShape | None:
    """The cheapest shape that covers ``needed``; None when none does. Prefill and decode stay apart."""
    fitting = [shape for shape in shapes if shape.covers(needed) and (shape.q_len == 1) == (needed.q_len == 1)]
    return min(fitting, key=lambda shape: (shape.cost, shape), default=None)


def smallest_at_least(steps: Sequence[int], value: int) -> int:
    """The first of ascending ``steps`` that is at least ``value``."""
    return next(step for step in steps if step >= value)
