"""flash-attn 2.x: FlashAttention-2 over a block table."""

from __future__ import annotations

from tgi_core.contract import AttentionUse, Device
from tgi_core.shards.attention_providers import Obstacle, PrefillAttention, Provider, has_module, unfit_model
from tgi_triton.varlen_prefill import VarlenPrefill, unfit_blocks

BLOCK_SIZE = 256
"""The library wants multiples of it."""


class FlashAttention2(Provider[tuple[int, int]]):
    """Paged prefill on every GPU of the backend, over large blocks."""

    name = "flash-attn"
    distribution = "flash-attn"

    def missing(self) -> Obstacle | None:
        # The compiled half: ``flash_attn`` itself may be there with flash-attn-4 alone.
        if has_module("flash_attn_2_cuda"):
            return None
        return Obstacle(
            "flash-attn 2 is not installed", 'Install it: pip install --no-build-isolation "tgi-serve[flash-attn]".'
        )

    def unfit(self, hardware: tuple[int, int], use: AttentionUse) -> Obstacle | None:  # noqa: ARG002 - 8.0 is enough
        return unfit_blocks(use, BLOCK_SIZE) or unfit_model(use, range(8, 257, 8))

    def open(self, device: Device, use: AttentionUse) -> PrefillAttention:  # noqa: ARG002 - it needs neither
        from flash_attn import flash_attn_varlen_func

        return VarlenPrefill(flash_attn_varlen_func)
