"""How the products of mixtures of experts are cut, by the number of pairs of token and expert that an expert has.

These tables are what to edit after a measurement; a row is found by the average over all experts, chosen or not.
"""

from __future__ import annotations

import math

import msgspec


class ProductTile(msgspec.Struct, frozen=True, kw_only=True):
    """How one of the two products is cut.

    Attributes:
        outputs: of a program; of the first product so many of both halves.
        block_bytes: along the inputs, that a program loads of a row at a time.
        warps, stages: of a program.
        group: neighbouring programs share outputs over so many tiles of pairs, so that weights stay in the cache.
        weights_left: the weights are the left operand of the matrix unit, whose rows come in 64 at least on Hopper.
        descriptors: the copy engine fetches the weights, where rows are multiples of 16 bytes.
    """

    outputs: int
    block_bytes: int = 128
    warps: int = 4
    stages: int = 3
    group: int = 1
    weights_left: bool = False
    descriptors: bool = False


class ExpertTiles(msgspec.Struct, frozen=True, kw_only=True):
    """How both products are cut.

    Attributes:
        most_pairs: for so many pairs an expert, on average.
        rows: pairs of a program. 1 where each pair has programs of its own, without a matrix unit and without sorting;
            16 is the fewest that matrix units take.
        up: the product with the gates and up projections.
        down: the product with the down projections.
    """

    most_pairs: float
    rows: int
    up: ProductTile
    down: ProductTile


_SINGLE = ExpertTiles(
    most_pairs=0.25,
    rows=1,
    up=ProductTile(outputs=1, block_bytes=4096, warps=4),
    down=ProductTile(outputs=1, block_bytes=2048, warps=4),
)

PORTABLE_TILES = (
    _SINGLE,
    ExpertTiles(most_pairs=16, rows=16, up=ProductTile(outputs=64), down=ProductTile(outputs=64)),
    ExpertTiles(most_pairs=math.inf, rows=64, up=ProductTile(outputs=64), down=ProductTile(outputs=64)),
)
"""For 16-bit weights on any device with 64 KiB of shared memory a program."""

FLOAT32_TILES = (
    _SINGLE,
    ExpertTiles(most_pairs=16, rows=16, up=ProductTile(outputs=64), down=ProductTile(outputs=64)),
    ExpertTiles(most_pairs=math.inf, rows=32, up=ProductTile(outputs=32), down=ProductTile(outputs=32)),
)
"""For float32 on any device: it takes twice the registers."""

HOPPER_TILES = (
    _SINGLE,
    ExpertTiles(
        most_pairs=6,
        rows=16,
        up=ProductTile(outputs=64, block_bytes=256, stages=3, weights_left=True, descriptors=True),
        down=ProductTile(outputs=64, block_bytes=256, stages=4, weights_left=True, descriptors=True),
    ),
    ExpertTiles(
        most_pairs=40,
        rows=32,
        up=ProductTile(outputs=64, block_bytes=256, stages=3, descriptors=True),
        down=ProductTile(outputs=64, block_bytes=256, stages=4, weights_left=True, descriptors=True),
    ),
    ExpertTiles(
        most_pairs=math.inf,
        rows=128,
        up=ProductTile(outputs=128, warps=8, stages=4, group=8, descriptors=True),
        down=ProductTile(outputs=256, warps=8, stages=4, group=8, descriptors=True),
    ),
)
"""For 16-bit weights; measured on an H200 with 8 experts of 14,336 and 128 of 768 features."""


def choose_tiles(table: tuple[ExpertTiles, ...], pairs: int, num_experts: int) -> ExpertTiles:
    """The row of ``table`` for so many pairs; its last one takes any number."""
    return next(tiles for tiles in table if pairs <= tiles.most_pairs * num_experts)
