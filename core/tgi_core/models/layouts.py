"""Brings weights from the order a checkpoint stores them in into the decoder's."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tgi_core.models.names import WeightNames
from tgi_core.models.spec import ArchitectureSpec, LatentSpec


def arrange_qkv(qkv: Tensor, spec: ArchitectureSpec, names: WeightNames) -> Tensor:
    """Rows of a merged projection or its bias, [(H + 2K) * D, ...]: queries, keys, values; pairs moved into halves."""
    heads, kv_heads, size = spec.num_heads, spec.num_kv_heads, spec.head_dim
    if not (names.qkv_by_group or names.adjacent_pairs):
        return qkv
    rest = qkv.shape[1:]
    if names.qkv_by_group:
        groups = qkv.view(kv_heads, heads // kv_heads + 2, size, *rest)
        q, k, v = groups[:, :-2].flatten(0, 1), groups[:, -2], groups[:, -1]
    else:
        q, k, v = torch.split(qkv.view(-1, size, *rest), [heads, kv_heads, kv_heads])
    return torch.cat((split_pairs(q, spec, names), split_pairs(k, spec, names), v)).flatten(0, 1)


def split_pairs(heads: Tensor, spec: ArchitectureSpec, names: WeightNames) -> Tensor:
    """Features of query or key heads, [X, D, ...], with the pairs that rotate moved into halves.

    A model that rotates features 2i and 2i + 1 together gives the same scores when both queries and keys are stored
    with feature 2i at i and 2i + 1 at i + R: then one rotary operation serves every model.
    """
    if not (names.adjacent_pairs and spec.ropes):
        return heads
    rotary_dim = spec.ropes[0].rotary_dim
    return torch.cat((_halves(heads[:, :rotary_dim]), heads[:, rotary_dim:]), dim=1)


def split_last_pairs(rows: Tensor, latent: LatentSpec) -> Tensor:
    """The same for rows of which the last features rotate: [X, unrotated + rotated, ...]."""
    if not latent.adjacent_pairs:
        return rows
    kept = rows.shape[1] - latent.rotated_dim
    return torch.cat((rows[:, :kept], _halves(rows[:, kept:])), dim=1)


def _halves(features: Tensor) -> Tensor:
    """Features [X, 2R, ...] that lie in pairs: the first of each pair, then the second of each."""
    return torch.cat((features[:, ::2], features[:, 1::2]), dim=1)


def unit_rows(weight_VE: Tensor) -> Tensor:
    """Each row divided by its length."""
    return F.normalize(weight_VE.float(), dim=-1).to(weight_VE.dtype)
