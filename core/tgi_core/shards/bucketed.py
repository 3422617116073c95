"""The shard for devices that compile: core's decoder under a bounded list of static shapes.

Nothing is compiled while a client waits. Warm-up prepares the few shapes that together take any step, the others are
prepared in idle time, and a step takes the cheapest shape that is ready.
"""

from __future__ import annotations

import torch

from tgi_core.contract import (
    Capabilities,
    Device,
    Kernels,
    KVBudget,
    LateInputs,
    LoadProgress,
    MemoryLine,
    ShardLimits,
    ShardSpec,
    StepPlan,
    StepResult,
)
from tgi_core.errors import ExitCode, StartupError
from tgi_core.plugins import Plugins
from tgi_core.sampling.rules import RuleSet
from tgi_core.shards.buckets import ShapeLimits, forward_shapes
from tgi_core.shards.checks import check_block_size
from tgi_core.shards.device_model import DeviceModel
from tgi_core.shards.eager import RESERVE_BYTES
from tgi_core.shards.memory import ACTIVATIONS, KVSizes, refuse_activations, size_kv_cache
from tgi_core.shards.pipelined import PipelinedShard
from tgi_core.shards.seen_blocks import SeenBlocks
from tgi_core.shards.shape_queue import SHAPES, ShapeQueue
from tgi_core.shards.slots import SlotTable
from tgi_core.shards.static_plans import ForwardCalls, PlanRunner, SampledCalls
from tgi_core.shards.static_runner import StaticRunner
from tgi_core.shards.static_steps import StaticModel
from tgi_core.shards.tables import make_state
from tgi_core.shards.worker import make_worker

_MOST_TOP_N = 128
"""Alternatives that the shape of a full-tier sampling has room for."""


class BucketedShard(PipelinedShard[ForwardCalls, SampledCalls]):
    """A decoder-only model on one device whose steps have static shapes.

    Args:
        spec: what to build.
        capabilities: of the device's backend.
        device: compiles and runs.
        kernels: operations whose shapes depend on no value, such as ``tgi_core.reference.padded.PaddedKernels``.

    Attributes:
        notes: what a user should know.

    Raises:
        StartupError: the model, its type or what it keeps cannot be computed under static shapes.
    """

    def __init__(self, spec: ShardSpec, capabilities: Capabilities, device: Device, kernels: Kernels) -> None:
        super().__init__(make_worker(asynchronous=capabilities.asynchronous, cpu_threads=spec.cpu_threads))
        self._capabilities = capabilities
        self._device = device
        self._kernels = kernels
        self._model = DeviceModel(spec, capabilities, device, kernels)
        model = self._model.model
        has_cross = any(attention.cross for attention in model.attention)
        if model.states or has_cross or not (self._model.has_own_attention and model.records(kernels)):
            raise StartupError(
                f"The model in {spec.model_dir}, {model.path}, cannot be computed in steps of static shapes.",
                "Use a backend that takes any shape, such as --backend cpu.",
                ExitCode.MODEL,
            )
        self._rules = RuleSet(Plugins.discover().logits_rules())
        self.notes: list[str] = self._model.notes
        self.extra_parameters = self._rules.extra_parameters
        self._queue: ShapeQueue | None = None

    @property
    def late_compiles(self) -> int:
        return 0 if self._queue is None else self._queue.plans.late_compiles

    def use_idle_time(self) -> bool:
        return self._submit(self._prepare_next).result()

    # -- start --------------------------------------------------------------------------------------------------------

    def _load(self, progress: LoadProgress) -> None:
        self._model.load(progress)

    def _warm_up(self, limits: ShardLimits) -> KVBudget:
        check_block_size(limits, self._capabilities)
        model, rules = self._model, self._capabilities.buckets
        weights = MemoryLine("weights", model.weights_bytes)
        # The largest cache there could be bounds the largest step; what does not fit there fits nowhere.
        most = self._size(limits, self._free_bytes(limits), [weights])
        try:
            activations_bytes = self._measure_activations(limits, most)
        except torch.OutOfMemoryError as error:
            raise refuse_activations(limits, model.weights_bytes) from error
        memory = [weights, MemoryLine(ACTIVATIONS, activations_bytes)]
        left_bytes = max(0, self._free_bytes(limits) - activations_bytes)
        reserve_bytes = int(left_bytes * rules.shapes_share)
        if reserve_bytes:
            memory.append(MemoryLine(SHAPES, reserve_bytes))
        sizes = self._size(limits, left_bytes - reserve_bytes, memory)
        self._queue = self._allocate(limits, sizes, [budget.blocks for budget in sizes.groups], reserve_bytes)
        while limits.strict_shapes and self._queue.prepare_next():
            pass
        self.notes.append(self._queue.note)
        memory.append(MemoryLine("kv cache", sizes.size_bytes))
        return KVBudget(limits.block_size, sizes.groups, sizes.max_total_tokens, memory)

    def _free_bytes(self, limits: ShardLimits) -> int:
        """What is left for activations, compiled shapes and the cache."""
        return int(self._device.memory().free_bytes * limits.memory_fraction) - RESERVE_BYTES

    def _size(self, limits: ShardLimits, free_bytes: int, memory: list[MemoryLine]) -> KVSizes:
        available_bytes = max(0, int(free_bytes * self._device.kv_cache_share))
        model = self._model
        return size_kv_cache(
            model.kv_groups(limits.block_size), limits, model.model.max_positions, available_bytes, memory
        )

    def _measure_activations(self, limits: ShardLimits, most: KVSizes) -> int:
        """Run the largest shapes over a cache of one block; returns what they take beyond what lasts, in bytes."""
        self._device.synchronize()
        self._device.reset_peak()
        before_bytes = self._device.memory().peak_bytes
        self._allocate(limits, most, [1] * len(self._model.windows), 0)
        self._device.synchronize()
        return max(0, self._device.memory().peak_bytes - before_bytes)

    def _allocate(self, limits: ShardLimits, sizes: KVSizes, blocks: list[int], reserve_bytes: int) -> ShapeQueue:
        """Make caches of ``blocks`` and tables, and compile the shapes that together take any step of ``sizes``."""
        model, device, max_slots = self._model, self._device.torch_device, limits.max_slots
        rules, max_tokens = self._capabilities.buckets, sizes.max_total_tokens
        columns = -(-max_tokens // limits.block_size)
        caches = model.make_caches(blocks, limits.block_size)
        state = make_state(max_slots, max_tokens, columns, 0, caches, rules=self._rules, states=(), device=device)
        # Rows that pad a step have one token, whose keys and values go to the scratch block.
        state.lengths_S[-1:] = 1
        slots = SlotTable(self._rules, max_slots, model.model.vocab_size, model.eos_ids())
        static = StaticModel(
            decoder=model.decoder,
            kernels=self._kernels,
            attention_kernels=model.attention_kernels,
            attention=model.model.attention,
            ropes=model.model.ropes,
            rotary_tables=model.make_rotary_tables(max_tokens),
            scratch_blocks=blocks,
            slots=slots,
            block_size=limits.block_size,
            vocab_size=model.model.vocab_size,
            top_n=_MOST_TOP_N,
        )
        seen = SeenBlocks(model.windows, limits.block_size, flat_decode=rules.flat_decode)
        runner = StaticRunner(self._device, static, state, columns, seen, strict=limits.strict_shapes)
        runner.prepare_entries()
        plans = PlanRunner(self._device, runner, slots, seen)
        largest = ShapeLimits(
            max_slots=max_slots,
            max_step_tokens=limits.max_step_tokens,
            max_q_len=min(limits.max_step_tokens, max_tokens),
            max_columns=columns,
            max_listed=seen.most_listed(max_slots, columns, [budget.blocks for budget in sizes.groups]),
        )
        shapes = forward_shapes(largest, rules, limits.block_size)
        queue = ShapeQueue(self._device, plans, shapes, reserve_bytes)
        queue.prepare_cover()
        return queue

    def _prepare_next(self) -> bool:
        return self._queue is not None and self._queue.prepare_next()

    # -- steps --------------------------------------------------------------------------------------------------------

    @property
    def _running(self) -> PlanRunner:
        assert self._queue is not None, "warm_up comes before steps"
        return self._queue.plans

    def _forward(self, plan: StepPlan) -> ForwardCalls:
        return self._running.forward(plan)

    def _sample(self, plan: StepPlan, forward: ForwardCalls, late: LateInputs | None) -> SampledCalls:
        return self._running.sample(plan, forward, late)

    def _result(self, plan: StepPlan, forward: ForwardCalls, sampled: SampledCalls) -> StepResult:
        return self._running.result(plan, forward, sampled)

    def _release(self) -> None:
        self._queue = None
        self._model.unload()
