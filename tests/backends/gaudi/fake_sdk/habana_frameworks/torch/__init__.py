"""Importing this registers device "hpu": ``torch.hpu``, ``torch.ops.hpu`` and what makes tensors there."""

import sys

import torch
from fake_hpu.guard import register_guard
from fake_hpu.ops import register
from fake_hpu.tensor import register_factories

from habana_frameworks.torch import core, hpu, utils

register_guard()
_LIBRARIES = (register(), register_factories())
torch.hpu = hpu
sys.modules["torch.hpu"] = hpu

__all__ = ["core", "hpu", "utils"]
