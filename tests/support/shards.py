"""Shards for tests: any kernels on the CPU, watched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from tgi_core.contract import Capabilities, Kernels, KVBudget, Sampled, SampleInputs, ShardLimits, ShardSpec
from tgi_core.reference import ReferenceKernels
from tgi_core.shards import EagerShard
from tgi_core.shards.cpu_device import CpuDevice
from tgi_cpu.kernels import CpuKernels


class RecordsLogits(ReferenceKernels):
    """Keeps the logits of every row that is sampled, by slot, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.logits: dict[int, list[Tensor]] = {}

    def sample(self, logits_BV: Tensor, inputs: SampleInputs) -> Sampled:
        for slot, row in zip(inputs.slots_B.tolist(), logits_BV, strict=True):
            self.logits.setdefault(slot, []).append(row.clone())
        return super().sample(logits_BV, inputs)


class WatchedReference(RecordsLogits):
    """The reference kernels, watched."""


class WatchedCpu(RecordsLogits, CpuKernels):
    """The CPU backend's kernels, watched."""


KERNELS: dict[str, Callable[[], WatchedReference | WatchedCpu]] = {"reference": WatchedReference, "cpu": WatchedCpu}


def start_shard(
    folder: Path,
    kernels: Kernels,
    *,
    dtype: str = "float32",
    load_format: str = "auto",
    max_step_tokens: int = 64,
    max_total_tokens: int | None = 128,
    max_slots: int = 6,
    kv_cache_tokens: int | None = None,
    threads: int = 1,
    eos_token_ids: tuple[int, ...] = (),
    trust_remote_code: bool = False,
) -> tuple[EagerShard, KVBudget]:
    """A loaded and warmed-up shard and its budget."""
    capabilities = Capabilities(dtypes=(dtype,))
    spec = ShardSpec(
        model_dir=folder,
        dtype=dtype,
        load_format=load_format,
        cpu_threads=threads,
        eos_token_ids=eos_token_ids,
        trust_remote_code=trust_remote_code,
    )
    shard = EagerShard(spec, capabilities, CpuDevice(), kernels)
    shard.load(lambda loaded_bytes, total_bytes: None)
    limits = ShardLimits(
        max_slots=max_slots,
        max_step_tokens=max_step_tokens,
        block_size=16,
        max_total_tokens=max_total_tokens,
        kv_cache_bytes=64 << 20,
        kv_cache_tokens=kv_cache_tokens,
    )
    return shard, shard.warm_up(limits)


def same_bits(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors agree bit for bit."""
    return first.shape == second.shape and first.dtype == second.dtype and torch.equal(first, second)
