"""The operations and devices of the backends in ``tests.testing.sabotage``."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor

from tgi_core.contract import (
    AttentionBatch,
    AttentionSpec,
    CompiledStep,
    DeviceGraph,
    DeviceMemory,
    DeviceState,
    FlatBlocks,
    Sampled,
    SampleInputs,
)
from tgi_core.contract.kernels import PreparedAttention
from tgi_core.reference import ReferenceKernels
from tgi_core.reference.padded import PaddedKernels
from tgi_core.testing.reference_backend import HostDevice
from tgi_core.testing.stand_ins.bucketed import BucketedCpuDevice


class Replayed:
    """A "graph" of the host: the work itself."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.replay = work


class GraphDevice(HostDevice):
    """Records by running the work again."""

    def capture(self, work: Callable[[], None]) -> DeviceGraph:
        work()
        return Replayed(work)


class MeasuredDevice(HostDevice):
    """Tells what all tensors hold, to the byte: what the process holds depends on what ran in it before."""

    def memory(self) -> DeviceMemory:
        storages = {}
        for found in gc.get_objects():
            # Not isinstance, which asks objects that warn when they are looked at.
            if issubclass(type(found), Tensor) and found.device.type == "cpu":
                # What sparse, fake and wrapped tensors raise, which other tests may have left behind.
                with suppress(RuntimeError):
                    storage = found.untyped_storage()
                    storages[storage.data_ptr()] = storage.nbytes()
        held_bytes = sum(storages.values())
        total_bytes = super().memory().total_bytes
        return DeviceMemory(max(0, total_bytes - held_bytes), total_bytes, held_bytes)


class SmallPeakDevice(HostDevice):
    """Tells a peak that has little to do with what is allocated."""

    def memory(self) -> DeviceMemory:
        return replace(super().memory(), peak_bytes=1000)


class RecompilingDevice(BucketedCpuDevice):
    """Forgets what it has compiled for a shape when another one is run."""

    def __init__(self) -> None:
        super().__init__()
        self._last: CompiledStep | None = None

    def compile(self, work: CompiledStep, state: DeviceState, inputs: tuple[Tensor, ...]) -> CompiledStep:
        step = super().compile(work, state, inputs)
        self._last = step

        def call(state: DeviceState, inputs: tuple[Tensor, ...]) -> tuple[DeviceState, tuple[Tensor, ...]]:
            self._num_compiled += step is not self._last
            self._last = step
            return step(state, inputs)

        return call


class SharedOutputs(BucketedCpuDevice):
    """Every call of a program returns the same tensors, with other values."""

    def compile(self, work: CompiledStep, state: DeviceState, inputs: tuple[Tensor, ...]) -> CompiledStep:
        step = super().compile(work, state, inputs)
        kept: list[Tensor] = []

        def call(state: DeviceState, inputs: tuple[Tensor, ...]) -> tuple[DeviceState, tuple[Tensor, ...]]:
            new_state, outputs = step(state, inputs)
            if not kept:
                kept.extend(outputs)
            return new_state, tuple(shared.copy_(output) for shared, output in zip(kept, outputs, strict=True))

        return call


class UncountingDevice(BucketedCpuDevice):
    """Does not say how much it compiles."""

    num_compiled = 0


class IgnoredOwners(PaddedKernels):
    """Takes what pads the list of a flat decode for the last row's."""

    def prepare_attention(self, batch: AttentionBatch, spec: AttentionSpec) -> PreparedAttention:
        if batch.flat is None:
            return batch
        blocks_F, owners_F, starts_F = batch.flat
        last = int(owners_F[owners_F < len(batch.q_lens)].max())
        return batch._replace(flat=FlatBlocks(blocks_F, owners_F.clamp(max=last), starts_F))


class OnDevice(ReferenceKernels):
    """The reference that reads lengths on the device, so that decodes can be recorded."""

    captures_experts = True

    def attention(
        self,
        q_THD: Tensor,
        cache_NP2KD: Tensor,
        prepared: PreparedAttention,
        spec: AttentionSpec,
        sinks_H: Tensor | None = None,
        *,
        distance_bias_HX: Tensor | None = None,
    ) -> Tensor:
        batch: AttentionBatch = prepared
        if batch.num_decodes < len(batch.q_lens):
            return super().attention(q_THD, cache_NP2KD, batch, spec, sinks_H, distance_bias_HX=distance_bias_HX)
        blocks_BM = batch.block_tables_BM.long().clamp(0, len(cache_NP2KD) - 1)
        kv_BC2KD = cache_NP2KD[blocks_BM].flatten(1, 2)
        positions_C = torch.arange(kv_BC2KD.shape[1])
        seen_BC = positions_C < batch.kv_lens_B[:, None]
        if batch.window is not None:
            seen_BC &= positions_C >= batch.kv_lens_B[:, None] - batch.window
        keys, values = kv_BC2KD.repeat_interleave(spec.num_heads // spec.num_kv_heads, dim=3).unbind(2)
        scores_BHC = torch.einsum("bhd,bchd->bhc", q_THD.float(), keys.float()) * spec.scale
        weights_BHC = scores_BHC.masked_fill(~seen_BC[:, None], float("-inf")).softmax(-1)
        values = values.masked_fill(~seen_BC[..., None, None], 0)
        return torch.einsum("bhc,bchd->bhd", weights_BHC, values.float()).to(q_THD.dtype)

    def supports(self, operation: str, spec: AttentionSpec) -> bool:
        return operation != "attention" or not spec.features


class WrongRopeHalf(ReferenceKernels):
    """Writes the second half of the rotated features only."""

    def rope(self, x_THD: Tensor, cos_TR: Tensor, sin_TR: Tensor) -> Tensor:
        half = cos_TR.shape[-1]
        return torch.cat((x_THD[..., :half], super().rope(x_THD, cos_TR, sin_TR)[..., half:]), dim=-1)


class OffByOneBlock(ReferenceKernels):
    """Reads the block after the one in the table."""

    def prepare_attention(self, batch: AttentionBatch, spec: AttentionSpec) -> PreparedAttention:
        return batch._replace(block_tables_BM=batch.block_tables_BM + 1)

    def attention(
        self, q_THD: Tensor, cache_NP2KD: Tensor, prepared: PreparedAttention, *rest: Any, **named: Any
    ) -> Tensor:
        batch: AttentionBatch = prepared
        tables_BM = batch.block_tables_BM.clamp(max=len(cache_NP2KD) - 1)
        return super().attention(q_THD, cache_NP2KD, batch._replace(block_tables_BM=tables_BM), *rest, **named)


class IgnoredWindow(ReferenceKernels):
    """Attends to everything."""

    def prepare_attention(self, batch: AttentionBatch, spec: AttentionSpec) -> PreparedAttention:
        return batch._replace(window=None)


class LeakingBlock(ReferenceKernels):
    """Keeps a copy of the blocks that a step of prompts writes."""

    def __init__(self) -> None:
        self._kept: list[Tensor] = []

    def attention(
        self, q_THD: Tensor, cache_NP2KD: Tensor, prepared: PreparedAttention, *rest: Any, **named: Any
    ) -> Tensor:
        batch: AttentionBatch = prepared
        if batch.num_decodes < len(batch.q_lens):
            self._kept.append(cache_NP2KD.clone())
        return super().attention(q_THD, cache_NP2KD, prepared, *rest, **named)


class IgnoredOffset(ReferenceKernels):
    """Norms as if every weight were whole."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
        return super().rms_norm(x, weight, eps, 0.0)


class Unseeded(ReferenceKernels):
    """Draws from the generator of the process."""

    def sample(self, logits_BV: Tensor, inputs: SampleInputs) -> Sampled:
        return super().sample(logits_BV, inputs._replace(seed_B=torch.randint_like(inputs.seed_B, 1 << 40)))


class HalfASeed(ReferenceKernels):
    """Keeps seeds in 32 bits."""

    def sample(self, logits_BV: Tensor, inputs: SampleInputs) -> Sampled:
        return super().sample(logits_BV, inputs._replace(seed_B=inputs.seed_B & 0xFFFFFFFF))


class CopiedKeys(ReferenceKernels):
    """Forgets the values."""

    def copy_blocks(self, cache_NP2KD: Tensor, sources_R: Tensor, targets_R: Tensor) -> None:
        cache_NP2KD[targets_R, :, 0] = cache_NP2KD[sources_R, :, 0]


class ReadsPastRows(ReferenceKernels):
    """Gathers every column of the tables, also those past a row's end."""

    def attention(
        self, q_THD: Tensor, cache_NP2KD: Tensor, prepared: PreparedAttention, *rest: Any, **named: Any
    ) -> Tensor:
        batch: AttentionBatch = prepared
        cache_NP2KD[batch.block_tables_BM.long()]
        return super().attention(q_THD, cache_NP2KD, prepared, *rest, **named)


class HostSync(OnDevice):
    """Looks at a value in the middle of a step."""

    def sample(self, logits_BV: Tensor, inputs: SampleInputs) -> Sampled:
        if not logits_BV.isfinite().any():
            raise ValueError("no token is left")
        return super().sample(logits_BV, inputs)

    def decode_inputs(self, state: Any, slots_B: Tensor) -> Any:
        inputs = super().decode_inputs(state, slots_B)
        longest = int(inputs.kv_lens_B.max())
        return inputs._replace(block_tables=tuple(table[:, :longest] for table in inputs.block_tables))
