"""Rotary position embedding."""

from __future__ import annotations

import torch
from torch import Tensor


def rope(x_THD: Tensor, cos_TR: Tensor, sin_TR: Tensor) -> Tensor:
    """Rotate the first 2R of D features, pairing feature i with i + R; computed in float32."""
    half = cos_TR.shape[-1]
    cos, sin = cos_TR[:, None], sin_TR[:, None]
    first = x_THD[..., :half].float()
    second = x_THD[..., half : 2 * half].float()
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x_THD.dtype)
    return torch.cat((rotated, x_THD[..., 2 * half :]), dim=-1)
