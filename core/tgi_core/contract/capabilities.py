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
        batch_invariant_dtypes: types in which a row's logits do not depend, bit for bit, on the rest of the batch.
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
    batch_invariant_dtypes: tuple[str, ...] = ()
