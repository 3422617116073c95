"""A device guard for device type "hpu", without which torch refuses most of what is done with its tensors.

The SDK registers one from C++. There is one card here, and nothing to switch: the guard of the meta device, which does
nothing, serves as well. Torch has no way to register it from Python, so that its table of guards is written to.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

_META, _HPU = 14, 15
"""``c10::DeviceType``."""


def register_guard() -> None:
    """Let device type "hpu" have a guard that does nothing."""
    c10 = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    table = (ctypes.c_void_p * (_HPU + 1)).in_dll(c10, "_ZN3c104impl26device_guard_impl_registryE")
    assert table[_META], "torch has another table of device guards"
    table[_HPU] = table[_META]
