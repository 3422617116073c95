"""The list of static shapes: bounded, as its rules say, and with one for every step."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tgi_core.contract import AppendedBlocks, BucketRules, Ladder
from tgi_core.shards.buckets import (
    COVER_SHAPES,
    MOST_SHAPES,
    ForwardShape,
    ShapeLimits,
    first_covering,
    forward_shapes,
    sizes,
    smallest_at_least,
)
from tgi_core.shards.host_tables import HostBlockTables
from tgi_core.shards.seen_blocks import SeenBlocks

BLOCK = 16
ladders = st.builds(
    Ladder, smallest=st.integers(1, 200), growth=st.integers(2, 5), step=st.none() | st.integers(1, 200)
)


def cheapest(shapes: Iterable[ForwardShape], needed: ForwardShape) -> ForwardShape | None:
    return first_covering(sorted(shapes, key=ForwardShape.order), needed)


@pytest.mark.parametrize(
    ("ladder", "largest", "expected"),
    [
        (Ladder(), 100, [1, 2, 4, 8, 16, 32, 64, 100]),
        (Ladder(step=32), 130, [1, 2, 4, 8, 16, 32, 64, 96, 128, 130]),
        (Ladder(growth=4, step=32), 100, [1, 4, 16, 32, 64, 96, 100]),
        (Ladder(smallest=128, step=128), 512, [128, 256, 384, 512]),
        (Ladder(smallest=16), 9, [9]),
    ],
)
def test_sizes(ladder: Ladder, largest: int, expected: list[int]) -> None:
    assert sizes(ladder, largest) == expected


@given(ladders, st.integers(1, 5000))
def test_a_value_is_padded_by_no_more_than_factor_and_step(ladder: Ladder, largest: int) -> None:
    found = sizes(ladder, largest)
    assert found == sorted(set(found))
    assert found[0] == min(ladder.smallest, largest)
    assert found[-1] == largest
    for size, following in pairwise(found):
        assert following <= size * ladder.growth or following - size <= (ladder.step or 0)
        if ladder.step is not None:
            assert size < ladder.step or following - size <= ladder.step
            # Sizes that hardware likes: multiples of the step.
            assert size < ladder.step or ladder.smallest > ladder.step or size % ladder.step == 0


@pytest.mark.parametrize("ladder", [Ladder(growth=1), Ladder(smallest=0), Ladder(step=0)])
def test_a_ladder_that_does_not_grow_is_refused(ladder: Ladder) -> None:
    with pytest.raises(ValueError, match="does not grow"):
        sizes(ladder, 10)


coarse_ladders = st.builds(
    Ladder, smallest=st.integers(1, 64), growth=st.integers(2, 5), step=st.none() | st.integers(64, 200)
)


@st.composite
def decodes(draw: st.DrawFn) -> tuple[ShapeLimits, BucketRules, ForwardShape]:
    """Limits, rules, and a decode within them."""
    slots, columns, is_flat = draw(st.integers(1, 40)), draw(st.integers(1, 40)), draw(st.booleans())
    q_len = draw(st.integers(2, BLOCK * columns))
    limits = ShapeLimits(slots, draw(st.integers(q_len, 700)), q_len, columns, draw(st.integers(columns, 1600)))
    names = BucketRules.__struct_fields__[:5]
    rules = BucketRules(**{name: draw(coarse_ladders) for name in names}, flat_decode=is_flat)
    rows = draw(st.integers(1, min(slots, limits.max_listed)))
    most_blocks = min(rows * columns, limits.max_listed) if is_flat else columns
    return limits, rules, ForwardShape(rows, 1, draw(st.integers(rows if is_flat else 1, most_blocks)), is_flat)


@given(decodes())
def test_every_decode_has_the_next_larger_shape(step: tuple[ShapeLimits, BucketRules, ForwardShape]) -> None:
    """And one that takes it padded from the start."""
    limits, rules, needed = step
    shapes = forward_shapes(limits, rules, BLOCK)
    assert len(shapes) == len(set(shapes)) <= MOST_SHAPES
    assert cheapest(shapes[:COVER_SHAPES], needed) is not None
    rows = smallest_at_least(sizes(rules.decode_rows, limits.max_slots), needed.rows)
    most_blocks = limits.max_listed if rules.flat_decode else limits.max_columns
    blocks = smallest_at_least(sizes(rules.decode_blocks, most_blocks), needed.blocks)
    assert ForwardShape(rows, 1, blocks, rules.flat_decode) in shapes


@given(decodes(), st.data())
def test_every_prefill_has_a_shape(step: tuple[ShapeLimits, BucketRules, ForwardShape], data: st.DataObject) -> None:
    limits, rules, _ = step
    shapes = forward_shapes(limits, rules, BLOCK)
    q_len = data.draw(st.integers(2, limits.max_q_len))
    columns = data.draw(st.integers(-(-q_len // BLOCK), limits.max_columns))
    assert cheapest(shapes[:COVER_SHAPES], ForwardShape(1, q_len, columns)) is not None
    assert all(shape.rows * shape.q_len <= limits.max_step_tokens for shape in shapes if shape.q_len > 1)
    padded_len = smallest_at_least(sizes(rules.prefill_lengths, limits.max_q_len), q_len)
    rows = sizes(rules.prefill_rows, min(limits.max_slots, limits.max_step_tokens // padded_len))[0]
    width = smallest_at_least(sizes(rules.prefill_columns, limits.max_columns), max(columns, -(-padded_len // BLOCK)))
    if rows * width <= max(most_gathered(limits, rules), limits.max_columns):
        assert ForwardShape(rows, padded_len, width) in shapes


def most_gathered(limits: ShapeLimits, rules: BucketRules) -> int:
    """Blocks that the largest decode looks at."""
    return limits.max_listed if rules.flat_decode else limits.max_slots * limits.max_columns


def test_rules_that_make_too_many_shapes_are_taken_wider() -> None:
    rules = BucketRules(decode_rows=Ladder(step=1), decode_blocks=Ladder(step=8), flat_decode=True)
    limits = ShapeLimits(max_slots=256, max_step_tokens=2048, max_q_len=2048, max_columns=64, max_listed=4096)
    shapes = forward_shapes(limits, rules, 128)
    assert MOST_SHAPES / 4 < len(shapes) <= MOST_SHAPES
    assert all(cheapest(shapes, ForwardShape(rows, 1, 5 * rows, is_flat=True)) for rows in range(1, 257, 15))


def test_a_flat_decode_costs_what_its_list_holds() -> None:
    """Not rows times the longest row; and its rows count where lists are equally long."""
    shapes = [ForwardShape(8, 1, 64, is_flat=True), ForwardShape(64, 1, 64, is_flat=True), ForwardShape(8, 1, 8)]
    needed = ForwardShape(8, 1, 60, is_flat=True)
    assert cheapest(shapes, needed) == shapes[0]
    assert cheapest([ForwardShape(64, 1, 64, is_flat=True), ForwardShape(8, 1, 256, is_flat=True)], needed) == shapes[1]
    assert cheapest(shapes, ForwardShape(8, 1, 8)) == shapes[2]
    assert cheapest(shapes, ForwardShape(9, 1, 65, is_flat=True)) is None


@pytest.mark.parametrize(
    ("window", "kv_len", "columns"),
    [
        (None, 1, range(1)),
        (None, 33, range(3)),
        (16, 16, range(1)),
        (16, 17, range(2)),
        (16, 32, range(1, 2)),
        (17, 32, range(2)),
        (1, 17, range(1, 2)),
        (40, 100, range(3, 7)),
    ],
)
def test_blocks_that_a_decode_sees(window: int | None, kv_len: int, columns: range) -> None:
    """Those with one of the positions that a query at the end sees."""
    seen = SeenBlocks([window], BLOCK, flat_decode=True).of_decode(0, kv_len)
    assert seen == columns
    first = 0 if window is None else max(0, kv_len - window)
    assert set(seen) == {position // BLOCK for position in range(first, kv_len)}


@given(st.integers(1, 100), st.integers(1, 300), st.integers(1, 8))
def test_a_list_holds_all_that_its_rows_see(window: int, kv_len: int, rows: int) -> None:
    groups = SeenBlocks([None, window], BLOCK, flat_decode=True)
    shape = groups.needed([1] * rows, [kv_len] * rows)
    for group in range(2):
        assert rows * len(groups.of_decode(group, kv_len)) <= groups.list_length(group, shape)
    assert groups.list_length(1, shape) <= rows * (window // BLOCK + 2)
    columns = -(-kv_len // BLOCK)
    assert groups.most_listed(rows, columns, [10_000, 10_000]) >= shape.blocks
    assert groups.most_listed(rows, columns, [1, 1]) >= columns


def test_a_list_of_blocks() -> None:
    tables = HostBlockTables([90, 91], max_slots=3, columns=4)
    tables.append([AppendedBlocks(1, 0, 0, [10, 11, 12]), AppendedBlocks(1, 2, 0, [20, 21, 22, 23])])
    found = tables.listed(1, [2, 0], [range(2, 4), range(1)], length=5, owner=4)
    assert found.tolist() == [[22, 23, 10, 91, 91], [0, 0, 1, 4, 4], [2, 3, 0, 0, 0]]
    assert tables.listed(0, [], [], length=2, owner=1).tolist() == [[90, 90], [1, 1], [0, 0]]
    column = tables.column([2, 3], [3, 0])
    assert [table.tolist() for table in column] == [[[90], [90]], [[23], [91]]]
    assert column[0].dtype is torch.int32


@pytest.mark.parametrize("flat_decode", [False, True])
def test_no_prefill_gathers_more_than_activations_are_measured_with(flat_decode: bool) -> None:
    """Rows of a prefill are padded to the same number of blocks: many short ones beside one that is very long."""
    limits = ShapeLimits(max_slots=32, max_step_tokens=4096, max_q_len=4096, max_columns=1024, max_listed=2000)
    rules = BucketRules(prefill_rows=Ladder(), flat_decode=flat_decode)
    shapes = forward_shapes(limits, rules, 128)
    measured = max(shape.blocks if shape.is_flat else shape.rows * shape.blocks for shape in shapes[:COVER_SHAPES])
    gathered = [shape.rows * shape.blocks for shape in shapes if shape.q_len > 1]
    assert max(gathered) <= measured
    assert any(shape.rows > 8 for shape in shapes if shape.q_len > 1)
