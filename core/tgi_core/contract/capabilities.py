"""What a device can do, told before anything is built. The scheduler adapts to this, never to a backend's name."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class ShapeMode(StrEnum):
    """Which shapes a step may have."""

    DYNAMIC = "dynamic"
    BUCKETED = "bucketed"
    WHOLE_MODEL = "whole_model"


class GraphMode(StrEnum):
    """Which steps the device can record once and replay."""

    NONE = "none"
    DECODE = "decode"
    FULL = "full"


class Ladder(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes that one dimension of a shape takes, up to a limit, which is always the last.

    Attributes:
        smallest: the first.
        growth: the factor to the next.
        step: from this size on the next lies so much higher, however much it has grown: a line instead of an
            exponential curve. None lets it grow on.
    """

    smallest: int = 1
    growth: int = 2
    step: int | None = None


class BucketRules(msgspec.Struct, frozen=True, kw_only=True):
    """How far apart the static shapes of a bucketed device lie. Closer ones pad less and take longer to prepare.

    Where they make more than 2,000 shapes, factors and steps are doubled until they do not.

    Attributes:
        prefill_rows: rows of a prefill.
        prefill_lengths: tokens that a row of a prefill computes.
        prefill_columns: blocks of a row that a prefill's attention looks at.
        decode_rows: rows of a decode.
        decode_blocks: blocks that a decode's attention looks at: of each row, or of all rows together where
            ``flat_decode`` is set.
        flat_decode: a decode's attention goes over one list of all rows' blocks (``AttentionBatch.flat``), not over a
            table with as many columns as its longest row has blocks.
        shapes_share: share of the memory that is free beside weights and activations which compiled shapes may take.
            When it is used up no more of them are prepared.
    """

    prefill_rows: Ladder = Ladder(growth=4)
    prefill_lengths: Ladder = Ladder(smallest=16)
    prefill_columns: Ladder = Ladder(smallest=4, growth=4)
    decode_rows: Ladder = Ladder()
    decode_blocks: Ladder = Ladder(smallest=4, growth=4)
    flat_decode: bool = False
    shapes_share: float = 0.0


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Frozen, and conservative by default: what is not declared is not used.

    Attributes:
        shape_mode: which shapes a step may have.
        graph: which steps can be captured and replayed.
        dtypes: names of the weight and activation types, the preferred one first.
        kv_dtypes: types of the KV cache; "auto" means the activations' type.
        block_sizes: tokens a KV block may hold, the preferred size first.
        head_dims: head sizes the attention kernels take; empty means any.
        mixed_batches: one step may hold prefill chunks and decode rows.
        chunked_prefill: a prompt may be computed over several steps.
        prefix_cache: blocks may be shared between slots.
        sliding_window: window groups of the KV cache are supported.
        run_ahead: steps that may be launched before the oldest one is collected, 0 or 1.
        asynchronous: kernels return before they have run (a stream); otherwise the shard gives them a thread.
        max_world_size: devices one model may be split over.
        attention: names of the implementations of attention, what ``--attention`` takes; the backend's own first.
        buckets: of a bucketed device, how its shapes are spaced.
        batch_invariant_dtypes: types in which a row's logits do not depend, bit for bit, on the rest of the batch.
        computes: tokens come from a model. A backend that makes them up, to test what lies above it, says so, and the
            conformance kit looks at its life cycle alone.
    """

    shape_mode: ShapeMode = ShapeMode.DYNAMIC
    graph: GraphMode = GraphMode.NONE
    dtypes: tuple[str, ...] = ("float32",)
    kv_dtypes: tuple[str, ...] = ("auto",)
    block_sizes: tuple[int, ...] = (16,)
    head_dims: tuple[int, ...] = ()
    mixed_batches: bool = True
    chunked_prefill: bool = True
    prefix_cache: bool = True
    sliding_window: bool = True
    run_ahead: int = 1
    asynchronous: bool = False
    max_world_size: int = 1
    attention: tuple[str, ...] = ("native",)
    buckets: BucketRules = BucketRules()
    batch_invariant_dtypes: tuple[str, ...] = ()
    computes: bool = True
