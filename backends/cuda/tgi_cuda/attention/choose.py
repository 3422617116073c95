"""Which attention may be used for a model on a GPU, and which of it is taken by itself."""

from __future__ import annotations

from tgi_core.contract import AttentionOption, AttentionUse
from tgi_core.shards import attention_providers
from tgi_core.shards.attention_providers import Provider
from tgi_cuda.attention import OWN
from tgi_cuda.attention.flash_attention_2 import FlashAttention2
from tgi_cuda.attention.flash_attention_4 import FlashAttention4
from tgi_cuda.attention.flash_infer import FlashInfer

PROVIDERS: tuple[Provider[tuple[int, int]], ...] = (FlashAttention4(), FlashInfer(), FlashAttention2())
"""In the order in which "auto" tries them."""

FASTER = frozenset({("flash-attn-4", 9)})
"""Providers that were measured to be faster than our own prefill kernel, each with the major compute capability of the
measurement; docs/performance.md has the figures."""


def list_options(capability: tuple[int, int], use: AttentionUse) -> tuple[AttentionOption, ...]:
    """Every provider and then our own kernels; see ``Backend.attention_options``.

    Args:
        capability: the GPU's compute capability.
        use: what the model asks.
    """
    major, minor = capability
    faster = {name for name, measured in FASTER if measured == major}
    place = f"on compute capability {major}.{minor}"
    return attention_providers.list_options(PROVIDERS, capability, use, faster=faster, place=place, own=OWN)
