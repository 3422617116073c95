"""Helpers of the SDK."""

from habana_frameworks.torch.utils import experimental, internal

__all__ = ["experimental", "internal"]
