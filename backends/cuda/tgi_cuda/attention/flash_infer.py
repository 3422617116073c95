"""FlashInfer: paged prefill that is planned on the host, once a step and KV group."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tgi_core.contract import AttentionBatch, AttentionSpec, AttentionUse, Device, DeviceEvent
from tgi_core.shards.attention_providers import Obstacle, PrefillAttention, Provider, has_module, unfit_model

_HEAD_DIMS = (64, 128, 256)

_WORKSPACE_BYTES = 1 << 20
"""For partial results of split keys, of which there are none."""

_PLANS_IN_FLIGHT = 2
"""A step is planned while the one before it may still wait for the device."""


class FlashInfer(Provider[tuple[int, int]]):
    """Paged prefill; its kernels are compiled by nvcc, or come ready-made in a package of their own."""

    name = "flashinfer"
    distribution = "flashinfer-python"

    def missing(self) -> Obstacle | None:
        if not has_module("flashinfer"):
            return Obstacle("FlashInfer is not installed", 'Install it: pip install "tgi-serve[cuda-flashinfer]".')
        if not has_module("flashinfer_jit_cache") and not has_compiler():
            return Obstacle(
                "it compiles its kernels, and there is no nvcc",
                "Install the CUDA toolkit and set CUDA_HOME, or install flashinfer-jit-cache.",
            )
        return None

    def unfit(self, hardware: tuple[int, int], use: AttentionUse) -> Obstacle | None:  # noqa: ARG002 - 8.0 is enough
        return unfit_model(use, _HEAD_DIMS)

    def open(self, device: Device, use: AttentionUse) -> PrefillAttention:
        from flashinfer import BatchPrefillWithPagedKVCacheWrapper

        major, _ = torch.cuda.get_device_capability(device.torch_device)
        # Left to itself the library takes other code for short chunks, and would compile it while requests wait.
        backend = "fa3" if major == 9 else "fa2"
        workspace_X = torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=device.torch_device)

        def make_wrapper() -> Any:
            return BatchPrefillWithPagedKVCacheWrapper(workspace_X, "NHD", backend=backend)

        return FlashInferPrefill(make_wrapper, device, use)


class _Plan:
    """One wrapper and the point in the device's work after which its staging memory may be written again."""

    def __init__(self, wrapper: Any) -> None:
        self.wrapper = wrapper
        self.copied: DeviceEvent | None = None


class FlashInferPrefill(PrefillAttention):
    """Plans and runs ``BatchPrefillWithPagedKVCacheWrapper``.

    Args:
        make_wrapper: makes one of them, for blocks of [P, K, D].
        device: where the cache is.
        use: the model's attention; one set of plans is kept for each spec.
    """

    def __init__(self, make_wrapper: Callable[[], Any], device: Device, use: AttentionUse) -> None:
        self._device = device
        self._dtype: torch.dtype = getattr(torch, use.dtype)
        self._plans: dict[AttentionSpec, Iterator[_Plan]] = {
            spec: itertools.cycle([_Plan(make_wrapper()) for _ in range(_PLANS_IN_FLIGHT)]) for spec in use.specs
        }

    def prepare(self, batch: AttentionBatch, spec: AttentionSpec) -> Any:
        plan = next(self._plans[spec])
        if plan.copied is not None:
            # A plan is copied out of pinned memory, which the next one of the same wrapper overwrites.
            plan.copied.synchronize()
        first, block_size = batch.num_decodes, batch.block_size
        kv_lens = batch.kv_lens[first:]
        blocks = [-(-kv_len // block_size) for kv_len in kv_lens]
        plan.wrapper.plan(
            self._starts(batch.q_lens[first:]),
            self._starts(blocks),
            self._used_blocks(batch.block_tables_BM[first:], torch.tensor(blocks)),
            self._stage([(kv_len - 1) % block_size + 1 for kv_len in kv_lens]),
            spec.num_heads,
            spec.num_kv_heads,
            spec.head_dim,
            block_size,
            causal=True,
            sm_scale=spec.scale,
            window_left=-1 if spec.window is None else spec.window - 1,
            q_data_type=self._dtype,
            kv_data_type=self._dtype,
            seq_lens=self._stage(kv_lens),
            # Sums then run in one order, whatever else is in the step.
            disable_split_kv=True,
        )
        plan.copied = self._device.record_event()
        return plan.wrapper

    def attend(self, q_THD: Tensor, cache_NP2KD: Tensor, prepared: Any, spec: AttentionSpec) -> Tensor:  # noqa: ARG002
        output_THD = torch.empty_like(q_THD)
        # Our kernels let the next one start early; this one reads what they write.
        prepared.run(q_THD, (cache_NP2KD[:, :, 0], cache_NP2KD[:, :, 1]), out=output_THD, enable_pdl=False)
        return output_THD

    def _used_blocks(self, tables_BM: Tensor, blocks_B: Tensor) -> Tensor:
        """The tables' used entries, row after row, int32; the host knows how many there are."""
        ends_B = blocks_B.cumsum(0)
        rows_X = torch.arange(len(blocks_B)).repeat_interleave(blocks_B)
        columns_X = torch.arange(int(ends_B[-1])) - (ends_B - blocks_B).repeat_interleave(blocks_B)
        places_X = rows_X * tables_BM.shape[1] + columns_X
        return tables_BM.reshape(-1).index_select(0, self._upload(places_X))

    def _starts(self, lengths: Sequence[int]) -> Tensor:
        return self._stage([0, *itertools.accumulate(lengths)])

    def _stage(self, values: Sequence[int]) -> Tensor:
        """int32 on the host, from where the library copies without waiting."""
        return torch.tensor(values, dtype=torch.int32, pin_memory=self._pins)

    def _upload(self, tensor: Tensor) -> Tensor:
        host = tensor.pin_memory() if self._pins else tensor
        return host.to(self._device.torch_device, non_blocking=True)

    @property
    def _pins(self) -> bool:
        return self._device.torch_device.type == "cuda"


def has_compiler() -> bool:
    """Whether nvcc is where the library looks for it."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if home is None and shutil.which("nvcc") is not None:
        return True
    return (Path(home or "/usr/local/cuda") / "bin" / "nvcc").exists()
