"""Other libraries' attention for the prefill rows of a step, each optional; decodes stay with our own kernels."""

from __future__ import annotations

from tgi_core.contract import AttentionUse, Device
from tgi_core.shards.attention_providers import Obstacle, PrefillAttention, Provider, has_module, unfit_model
from tgi_triton import varlen_prefill

_BLOCK_SIZE = 128
"""Composable Kernel, which is below both libraries, pages by multiples of it."""

_HEAD_DIMS = range(8, 257, 8)

_FEWEST_QUERIES = 2
"""Chunks of one query would be run by code without a mask, which would have to be compiled while requests wait."""


class Aiter(Provider[str]):
    """AMD's library of kernels for Instinct GPUs; it compiles them when they are first called."""

    name = "aiter"
    distribution = "amd-aiter"

    def missing(self) -> Obstacle | None:
        if has_module("aiter"):
            return None
        return Obstacle("aiter is not installed", "Install AMD's aiter for your ROCm: docs/backends/rocm.md says how.")

    def unfit(self, hardware: str, use: AttentionUse) -> Obstacle | None:
        return _unfit(hardware, ("gfx942", "gfx950"), use)

    def open(self, device: Device, use: AttentionUse) -> PrefillAttention:  # noqa: ARG002 - it needs neither
        from aiter import flash_attn_varlen_func

        return varlen_prefill.VarlenPrefill(flash_attn_varlen_func, least_q=_FEWEST_QUERIES)


class FlashAttention2(varlen_prefill.FlashAttention2[str]):
    """flash-attn 2 as built for ROCm. Its variant in Triton does not read a paged cache and is not meant here."""

    def unfit(self, hardware: str, use: AttentionUse) -> Obstacle | None:
        return _unfit(hardware, ("gfx90a", "gfx942", "gfx950"), use)


PROVIDERS: tuple[Provider[str], ...] = (Aiter(), FlashAttention2())
"""In the order in which "auto" tries them."""

FASTER: frozenset[tuple[str, str]] = frozenset()
"""Providers that were measured to be faster than our own prefill kernel, each with the architecture: none so far."""


def _unfit(architecture: str, architectures: tuple[str, ...], use: AttentionUse) -> Obstacle | None:
    if architecture not in architectures:
        return Obstacle(f"it is made for {', '.join(architectures)}, not for {architecture}")
    return varlen_prefill.unfit_blocks(use, _BLOCK_SIZE) or unfit_model(use, _HEAD_DIMS)
