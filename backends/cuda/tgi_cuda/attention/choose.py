"""Which attention may be used for a model on a GPU, and which of it is taken by itself."""

from __future__ import annotations

from tgi_core.contract import AttentionOption, AttentionUse
from tgi_cuda.attention import OWN
from tgi_cuda.attention.flash_attention_2 import FlashAttention2
from tgi_cuda.attention.flash_attention_4 import FlashAttention4
from tgi_cuda.attention.flash_infer import FlashInfer
from tgi_cuda.attention.provider import Provider, installed_version

PROVIDERS: tuple[Provider, ...] = (FlashAttention4(), FlashInfer(), FlashAttention2())
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
    others = tuple(_option(provider, capability, use) for provider in PROVIDERS)
    beaten = any(option.automatic for option in others)
    remark = "our own kernels" if beaten else "our own kernels, since nothing that counts as faster can be used"
    return (*others, AttentionOption(name=OWN, remark=remark))


def find_provider(name: str) -> Provider:
    """The provider called ``name``."""
    return next(provider for provider in PROVIDERS if provider.name == name)


def _option(provider: Provider, capability: tuple[int, int], use: AttentionUse) -> AttentionOption:
    obstacle = provider.obstacle(capability, use)
    if obstacle is not None:
        return AttentionOption(name=provider.name, obstacle=obstacle.reason, fix=obstacle.fix, automatic=False)
    faster = (provider.name, capability[0]) in FASTER
    speed = "counts as faster" if faster else "is not known to be faster"
    installed = f"{provider.distribution} {installed_version(provider.distribution)}".rstrip()
    major, minor = capability
    return AttentionOption(
        name=provider.name,
        automatic=faster,
        remark=f"{installed} {speed} than our own kernels on compute capability {major}.{minor}",
    )
