"""flash-attn 2.x: FlashAttention-2 over a block table."""

from __future__ import annotations

from tgi_core.contract import AttentionUse
from tgi_core.shards.attention_providers import Obstacle, unfit_model
from tgi_triton import varlen_prefill

BLOCK_SIZE = 256
"""The library wants multiples of it."""


class FlashAttention2(varlen_prefill.FlashAttention2[tuple[int, int]]):
    """Paged prefill on every GPU of the backend, over large blocks."""

    def unfit(self, hardware: tuple[int, int], use: AttentionUse) -> Obstacle | None:  # noqa: ARG002 - 8.0 is enough
        return varlen_prefill.unfit_blocks(use, BLOCK_SIZE) or unfit_model(use, range(8, 257, 8))
