"""What backends of GPUs that torch drives and Triton compiles for have in common. Imports no torch by itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from tgi_core.contract import AttentionChoice, Backend, Capabilities, Device, GraphMode, Kernels, Probe

BLOCK_SIZES = (64, 16, 32, 128, 256)
"""Tokens of a KV block. The copy engines of some fetch tiles of 64 tokens, which must lie within a block."""


class GpuBackend(Backend):
    """Everything is asynchronous, decodes are recorded, and attention has several implementations.

    Attributes:
        attention: what ``--attention`` takes; the backend's own kernels first.
    """

    attention: tuple[str, ...]

    def capabilities(self) -> Capabilities:
        return Capabilities(
            graph=GraphMode.DECODE,
            dtypes=("bfloat16", "float16", "float32"),
            block_sizes=BLOCK_SIZES,
            run_ahead=1,
            asynchronous=True,
            attention=self.attention,
        )

    def kernels(self, device: Device) -> Kernels:
        return self.kernels_for(device, None)

    @abstractmethod
    def kernels_for(self, device: Device, attention: AttentionChoice | None) -> Kernels:
        """See ``Backend``."""


def ask_torch(look: Callable[[Any], Probe], *, library: str, install_torch: str, check: str) -> Probe:
    """What ``look`` finds with torch; a reason where torch or the vendor's library does not start. Never raises.

    Args:
        look: is given torch; may raise anything.
        library: the vendor's, as it is called in a sentence.
        install_torch: which torch to install, one sentence.
        check: how to look at the driver, one sentence.
    """
    try:
        import torch
    except (ImportError, OSError) as error:
        return Probe(reason=f"torch cannot be imported ({error})", fix=install_torch)
    try:
        return look(torch)
    except Exception as error:  # drivers and libraries of different versions raise anything
        return Probe(reason=f"{library} does not start: {error}", fix=check)
