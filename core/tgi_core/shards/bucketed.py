"""The shard for devices that compile: core's decoder under a bounded list of static shapes.

Nothing is compiled while a client waits. Warm-up prepares the few shapes that together take any step, the others are
prepared in idle time, and a step takes the cheapest shape that is ready.
"""

from __future__ import annotations

from collections import deque

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
from tgi_core.shards.buckets import COVER_SHAPES, ForwardShape, ShapeLimits, forward_shapes
from tgi_core.shards.checks import check_block_size
from tgi_core.shards.device_model import DeviceModel
from tgi_core.shards.eager import RESERVE_BYTES
from tgi_core.shards.memory import ACTIVATIONS, refuse_activations, size_kv_cache
from tgi_core.shards.pipelined import PipelinedShard
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
        self._plans: PlanRunner | None = None
        self._waiting: deque[ForwardShape] = deque()

    def use_idle_time(self) -> bool:
        return self._submit(self._prepare_next).result()

    # -- start --------------------------------------------------------------------------------------------------------

    def _load(self, progress: LoadProgress) -> None:
        self._model.load(progress)

    def _warm_up(self, limits: ShardLimits) -> KVBudget:
        check_block_size(limits, self._capabilities)
        model = self._model
        try:
            activations_bytes = self._measure_activations(limits)
        except torch.OutOfMemoryError as error:
            raise refuse_activations(limits, model.weights_bytes) from error
        memory = [MemoryLine("weights", model.weights_bytes), MemoryLine(ACTIVATIONS, activations_bytes)]
        free_bytes = self._device.memory().free_bytes * limits.memory_fraction - RESERVE_BYTES
        available_bytes = max(0, int((free_bytes - activations_bytes) * self._device.kv_cache_share))
        groups = model.kv_groups(limits.block_size)
        sizes = size_kv_cache(groups, limits, model.model.max_positions, available_bytes, memory)
        self._plans = self._allocate(limits, sizes.max_total_tokens, [budget.blocks for budget in sizes.groups])
        ready, waiting = len(self._plans.ready), len(self._waiting)
        self.notes.append(f"{ready + waiting} shapes of a step, of which {ready} are ready when serving starts")
        memory.append(MemoryLine("kv cache", sizes.size_bytes))
        return KVBudget(limits.block_size, sizes.groups, sizes.max_total_tokens, memory)

    def _measure_activations(self, limits: ShardLimits) -> int:
        """Run the largest shapes over a cache of one block; returns what they take beyond what lasts, in bytes."""
        most_tokens = limits.max_total_tokens or min(self._model.model.max_positions, limits.max_step_tokens + 1)
        self._device.synchronize()
        self._device.reset_peak()
        before_bytes = self._device.memory().peak_bytes
        self._allocate(limits, most_tokens, [1] * len(self._model.windows))
        self._device.synchronize()
        return max(0, self._device.memory().peak_bytes - before_bytes)

    def _allocate(self, limits: ShardLimits, max_total_tokens: int, blocks: list[int]) -> PlanRunner:
        """Make caches and tables, and compile the shapes that together take any step; the others are queued."""
        model, device, max_slots = self._model, self._device.torch_device, limits.max_slots
        columns = -(-max_total_tokens // limits.block_size)
        caches = model.make_caches(blocks, limits.block_size)
        state = make_state(max_slots, max_total_tokens, columns, 0, caches, rules=self._rules, states=(), device=device)
        # Rows that pad a step have one token, whose keys and values go to the scratch block.
        state.lengths_S[-1:] = 1
        slots = SlotTable(self._rules, max_slots, model.model.vocab_size, model.eos_ids())
        static = StaticModel(
            decoder=model.decoder,
            kernels=self._kernels,
            attention_kernels=model.attention_kernels,
            attention=model.model.attention,
            ropes=model.model.ropes,
            rotary_tables=model.make_rotary_tables(max_total_tokens),
            scratch_blocks=blocks,
            slots=slots,
            block_size=limits.block_size,
            vocab_size=model.model.vocab_size,
            top_n=_MOST_TOP_N,
        )
        runner = StaticRunner(self._device, static, state, columns)
        runner.prepare_entries()
        plans = PlanRunner(self._device, runner, slots, limits.block_size)
        most_q_len = min(limits.max_step_tokens, max_total_tokens)
        largest = ShapeLimits(max_slots, limits.max_step_tokens, most_q_len, columns)
        self._waiting = deque(forward_shapes(largest, self._capabilities.buckets, limits.block_size))
        for _ in range(COVER_SHAPES):
            plans.prepare(self._waiting.popleft())
        return plans

    def _prepare_next(self) -> bool:
        if self._plans is not None and self._waiting:
            self._plans.prepare(self._waiting.popleft())
        return bool(self._waiting)

    # -- steps --------------------------------------------------------------------------------------------------------

    @property
    def _running(self) -> PlanRunner:
        assert self._plans is not None, "warm_up comes before steps"
        return self._plans

    def _forward(self, plan: StepPlan) -> ForwardCalls:
        return self._running.forward(plan)

    def _sample(self, plan: StepPlan, forward: ForwardCalls, late: LateInputs | None) -> SampledCalls:
        return self._running.sample(plan, forward, late)

    def _result(self, plan: StepPlan, forward: ForwardCalls, sampled: SampledCalls) -> StepResult:
        return self._running.result(plan, forward, sampled)

    def _release(self) -> None:
        self._plans = None
        self._model.unload()
        self._waiting.clear()
