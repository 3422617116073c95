"""Attention by jax's Pallas kernel, as an operation of torch.

Its cache is [N, P, 2K, D], in which a head's keys and values lie side by side: key of head 0, its value, key of head 1.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import torch
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

_KEYS_BYTES = 2 << 20
"""Keys and values that the kernel holds at a time, of which it fetches the next meanwhile."""

_QUERIES = 32
"""Tokens whose queries it holds."""

LIBRARY = torch.library.Library("tgi_tpu", "DEF")  # type: ignore[no-untyped-call]
LIBRARY.define(  # type: ignore[no-untyped-call]
    "ragged_attention(Tensor q_THD, Tensor pages_NPXD, Tensor kv_lens_B, Tensor block_tables_BM, Tensor q_starts_B, "
    "float scale, int? window, float? soft_cap) -> Tensor"
)

RAGGED_ATTENTION = torch.ops.tgi_tpu.ragged_attention.default
"""See ``attend``."""


def attend(  # noqa: PLR0917 - the arguments of its operation in torch
    q_THD: jax.Array,
    pages_NPXD: jax.Array,
    kv_lens_B: jax.Array,
    block_tables_BM: jax.Array,
    q_starts_B: jax.Array,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    *,
    mesh: Mesh,
) -> jax.Array:
    """Causal attention of all rows, each device of the mesh over its own heads; see ``Kernels.attention``."""
    heads = P(None, "model", None)

    def local(q_THD: jax.Array, pages_NPXD: jax.Array, *integers: jax.Array) -> jax.Array:
        page_bytes = math.prod(pages_NPXD.shape[1:]) * pages_NPXD.dtype.itemsize
        output_THD: jax.Array = ragged_paged_attention(
            q_THD,
            pages_NPXD,
            *integers,
            jnp.full((1,), len(kv_lens_B), jnp.int32),
            sm_scale=scale,
            sliding_window=window,
            soft_cap=soft_cap,
            num_kv_pages_per_block=min(max(1, _KEYS_BYTES // page_bytes), block_tables_BM.shape[1]),
            num_queries_per_block=min(_QUERIES, len(q_THD)),
        )
        return output_THD

    divided = jax.shard_map(
        local,
        mesh=mesh.abstract_mesh,
        in_specs=(heads, P(None, None, "model", None), P(), P(), P()),
        out_specs=heads,
        check_vma=False,
    )
    integers = (kv_lens_B, block_tables_BM, q_starts_B)
    # The kernel counts in int32 and asks for no more precision than its operands have.
    narrow, plain = jax.enable_x64(False), jax.default_matmul_precision("default")
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh), narrow, plain:
        return divided(q_THD, pages_NPXD, *(integer.astype(jnp.int32) for integer in integers))
