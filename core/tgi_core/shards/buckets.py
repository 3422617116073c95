"""The static shapes of a bucketed shard: a bounded list, and which of them a step takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from msgspec.structs import replace

from tgi_core.contract import BucketRules, Ladder

COVER_SHAPES = 2
"""How many of the first shapes together take any step."""

MOST_SHAPES = 2000
"""More are never prepared: to choose among them would take a step's time, and to compile them hours."""


class ForwardShape(NamedTuple):
    """A forward's shape.

    Attributes:
        rows: how many.
        q_len: tokens that a row computes.
        blocks: columns of its block tables, or the length of a flat decode's list.
        is_flat: a flat decode; see ``AttentionBatch.flat``.
    """

    rows: int
    q_len: int
    blocks: int
    is_flat: bool = False

    def covers(self, other: ForwardShape) -> bool:
        """Whether a step of the other shape fits into this one, padded. Prefill and decode stay apart."""
        return (
            self.rows >= other.rows
            and self.q_len >= other.q_len
            and self.blocks >= other.blocks
            and self.is_flat == other.is_flat
            and (self.q_len == 1) == (other.q_len == 1)
        )

    @property
    def cost(self) -> int:
        """For which shape of several is the cheapest: blocks that its tokens look at, and one for the rest of each."""
        tokens = self.rows * self.q_len
        return tokens + (self.blocks if self.is_flat else tokens * self.blocks)

    def order(self) -> tuple[int, ForwardShape]:
        """To sort by: the cheapest first."""
        return self.cost, self

    def __str__(self) -> str:
        """For people."""
        of_each = "in all" if self.is_flat else "of each"
        return f"{self.rows} rows of {self.q_len} tokens, {self.blocks} blocks {of_each}"


class ShapeLimits(NamedTuple):
    """The largest step.

    Attributes:
        max_slots: rows of a decode.
        max_step_tokens: tokens.
        max_q_len: tokens in one row.
        max_columns: columns of a block table.
        max_listed: blocks in the list of a flat decode, at least those of one row.
    """

    max_slots: int
    max_step_tokens: int
    max_q_len: int
    max_columns: int
    max_listed: int


def sizes(ladder: Ladder, largest: int) -> list[int]:
    """The sizes of one dimension, ascending; the last is ``largest``.

    They grow by the ladder's factor, and from its step on by that step: 1, 2, 4, 8, 16, 32, 64, 96, 128 for a step of
    32. So all from the step on are multiples of it.

    Raises:
        ValueError: the ladder does not grow.
    """
    if ladder.smallest < 1 or ladder.growth < 2 or (ladder.step is not None and ladder.step < 1):
        raise ValueError(f"{ladder} does not grow: it begins at 1 or more, its factor is 2 or more, its step 1 or more")
    found = []
    value = ladder.smallest
    while value < largest:
        found.append(value)
        if ladder.step is None:
            value *= ladder.growth
        elif value < ladder.step:
            value = min(value * ladder.growth, ladder.step)
        else:
            value += ladder.step
    return [*found, largest]


def forward_shapes(limits: ShapeLimits, rules: BucketRules, block_size: int) -> list[ForwardShape]:
    """Every shape of a forward, in the order in which they should become ready; at most ``MOST_SHAPES``.

    The first of them together take any step, if need be a row at a time: the longest prefill of one row and the
    largest decode. Then the cheap ones, which most steps are. Where the rules make too many, their sizes are taken
    twice as far apart, until there are few enough.
    """
    while len(shapes := {*_decodes(limits, rules), *_prefills(limits, rules, block_size)}) > MOST_SHAPES:
        rules = _coarser(rules)
    most_blocks = limits.max_listed if rules.flat_decode else limits.max_columns
    cover = [
        ForwardShape(limits.max_slots, 1, most_blocks, rules.flat_decode),
        ForwardShape(1, limits.max_q_len, limits.max_columns),
    ]
    rest = sorted(shapes.difference(cover), key=ForwardShape.order)
    return [*cover, *rest]


def _decodes(limits: ShapeLimits, rules: BucketRules) -> Iterator[ForwardShape]:
    rows_steps = sizes(rules.decode_rows, limits.max_slots)
    if not rules.flat_decode:
        for blocks in sizes(rules.decode_blocks, limits.max_columns):
            yield from (ForwardShape(rows, 1, blocks) for rows in rows_steps)
        return
    for fewer_blocks, blocks in pairwise([0, *sizes(rules.decode_blocks, limits.max_listed)]):
        for fewer_rows, rows in pairwise([0, *rows_steps]):
            # A row has at least one block and at most as many as a table has columns: other steps take another shape.
            if fewer_rows < blocks and fewer_blocks < rows * limits.max_columns:
                yield ForwardShape(rows, 1, blocks, is_flat=True)


def _prefills(limits: ShapeLimits, rules: BucketRules, block_size: int) -> Iterator[ForwardShape]:
    columns = sizes(rules.prefill_columns, limits.max_columns)
    in_decode = limits.max_listed if rules.flat_decode else limits.max_slots * limits.max_columns
    most_blocks = max(in_decode, limits.max_columns)
    for q_len in sizes(rules.prefill_lengths, limits.max_q_len):
        most_rows = min(limits.max_slots, max(1, limits.max_step_tokens // q_len))
        for rows in sizes(rules.prefill_rows, most_rows):
            for width in columns:
                # A row has at least as many keys as tokens. All rows together gather no more blocks than the largest
                # decode or a whole row, which is what activations are measured with.
                if width * block_size >= q_len and rows * width <= most_blocks:
                    yield ForwardShape(rows, q_len, width)


def _coarser(rules: BucketRules) -> BucketRules:
    def widen(ladder: Ladder) -> Ladder:
        step = None if ladder.step is None else 2 * ladder.step
        return replace(ladder, growth=2 * ladder.growth, step=step)

    return replace(
        rules,
        prefill_rows=widen(rules.prefill_rows),
        prefill_lengths=widen(rules.prefill_lengths),
        prefill_columns=widen(rules.prefill_columns),
        decode_rows=widen(rules.decode_rows),
        decode_blocks=widen(rules.decode_blocks),
    )


def first_covering(shapes: Iterable[ForwardShape], needed: ForwardShape) -> ForwardShape | None:
    """The first shape that covers ``needed``: the cheapest of those in order; None when none does."""
    return next((shape for shape in shapes if shape.covers(needed)), None)


def smallest_at_least(steps: Sequence[int], value: int) -> int:
    """The first of ascending ``steps`` that is at least ``value``."""
    return next(step for step in steps if step >= value)
