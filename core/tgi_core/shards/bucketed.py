"""The shard for devices that compile: core's decoder under a bounded list of static shapes.

Nothing is compiled while a client waits. Warm-up prepares the few shapes that together take any step, the others are
prepared in idle time, and a step takes the cheapest shape that is ready.
"""

from __future__ import annotations

import math
from collections import deque
from concurrent.futures import Future
from functools import partial

import torch

from tgi_core.contract import (
    Capabilities,
    Device,
    DeviceEvent,
    Kernels,
    KVBudget,
    KVGroup,
    LateInputs,
    LoadProgress,
    MemoryLine,
    ModelShard,
    ShardLimits,
    ShardSpec,
    StepPlan,
    StepResult,
    Ticket,
)
from tgi_core.errors import ExitCode, StartupError
from tgi_core.models.choose import choose_model
from tgi_core.models.model import LoadedModel, LoadOptions
from tgi_core.models.rotary import rotary_table
from tgi_core.plugins import Plugins
from tgi_core.sampling.rules import RuleSet
from tgi_core.shards.binding import bind_attention
from tgi_core.shards.buckets import COVER_SHAPES, ForwardShape, ShapeLimits, forward_shapes
from tgi_core.shards.checks import check_block_size, check_dtype
from tgi_core.shards.faults import typed_faults
from tgi_core.shards.memory import ACTIVATIONS, refuse_activations, size_kv_cache
from tgi_core.shards.slots import SlotTable
from tgi_core.shards.static_plans import ForwardCalls, PlanRunner, SampledCalls
from tgi_core.shards.static_runner import StaticRunner
from tgi_core.shards.static_steps import StaticModel
from tgi_core.shards.tables import make_state
from tgi_core.shards.worker import InlineWorker, ThreadWorker, Worker

_MOST_TOP_N = 128
"""Alternatives that the shape of a full-tier sampling has room for."""

_RESERVE_BYTES = 64 << 20
"""Kept free beside weights, activations and cache."""


class _Ticket:
    """A launched step."""

    def __init__(self, plan: StepPlan, forward: Future[ForwardCalls]) -> None:
        self.plan = plan
        self.forward = forward
        self.sampled: Future[tuple[SampledCalls, DeviceEvent]] | None = None

    @property
    def step(self) -> int:
        return self.plan.step


class BucketedShard(ModelShard):
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
        self._spec = spec
        self._capabilities = capabilities
        self._device = device
        self._kernels = kernels
        check_dtype(spec, capabilities)
        self._dtype: torch.dtype = getattr(torch, spec.dtype)
        self._model = choose_model(spec.model_dir)
        unfit = [attention for attention in self._model.attention if not kernels.supports("attention", attention)]
        if self._model.states or unfit or not self._model.records(kernels):
            raise StartupError(
                f"The model in {spec.model_dir}, {self._model.path}, cannot be computed in steps of static shapes.",
                "Use a backend that takes any shape, such as --backend cpu.",
                ExitCode.MODEL,
            )
        self._attention_kernels = bind_attention(kernels, self._model.attention).kernels
        self._rules = RuleSet(Plugins.discover().logits_rules())
        self.notes: list[str] = list(kernels.notes)
        self.extra_parameters = self._rules.extra_parameters
        self._worker: Worker = InlineWorker() if capabilities.asynchronous else ThreadWorker(spec.cpu_threads)
        self._decoder: LoadedModel | None = None
        self._weights_bytes = 0
        self._plans: PlanRunner | None = None
        self._waiting: deque[ForwardShape] = deque()

    def load(self, progress: LoadProgress) -> None:
        self._worker.submit(partial(self._load, progress)).result()

    def warm_up(self, limits: ShardLimits) -> KVBudget:
        return self._worker.submit(partial(self._warm_up, limits)).result()

    def launch(self, plan: StepPlan) -> Ticket:
        return _Ticket(plan, self._worker.submit(partial(self._forward, plan)))

    def sample(self, ticket: Ticket, late: LateInputs | None) -> None:
        assert isinstance(ticket, _Ticket)
        ticket.sampled = self._worker.submit(partial(self._sample, ticket, late))

    def collect(self, ticket: Ticket) -> StepResult:
        assert isinstance(ticket, _Ticket)
        assert ticket.sampled is not None, "sample comes before collect"
        assert self._plans is not None
        with typed_faults():
            sampled, event = ticket.sampled.result()
            event.synchronize()
        return self._plans.result(ticket.plan, ticket.forward.result(), sampled)

    def use_idle_time(self) -> bool:
        return self._worker.submit(self._prepare_next).result()

    def close(self) -> None:
        self._worker.close()
        self._decoder = None
        self._plans = None
        self._waiting.clear()

    # -- start --------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _load(self, progress: LoadProgress) -> None:
        options = LoadOptions(
            load_format=self._spec.load_format,
            dtype=self._dtype,
            device=self._device.torch_device,
            kernels=self._kernels,
            attention_kernels=self._attention_kernels,
            progress=progress,
        )
        loaded = self._model.load(options)
        self._decoder, self._weights_bytes = loaded.model, loaded.weights_bytes
        self.notes += loaded.notes

    @torch.inference_mode()
    def _warm_up(self, limits: ShardLimits) -> KVBudget:
        check_block_size(limits, self._capabilities)
        try:
            activations_bytes = self._measure_activations(limits)
        except torch.OutOfMemoryError as error:
            raise refuse_activations(limits, self._weights_bytes) from error
        memory = [MemoryLine("weights", self._weights_bytes), MemoryLine(ACTIVATIONS, activations_bytes)]
        free_bytes = self._device.memory().free_bytes * limits.memory_fraction
        available_bytes = int((free_bytes - activations_bytes - _RESERVE_BYTES) * self._device.kv_cache_share)
        groups = self._kv_groups(limits.block_size)
        sizes = size_kv_cache(groups, limits, self._model.max_positions, max(0, available_bytes), memory)
        self._plans = self._allocate(limits, sizes.max_total_tokens, [budget.blocks for budget in sizes.groups])
        ready, waiting = len(self._plans.ready), len(self._waiting)
        self.notes.append(
            f"{ready + waiting} shapes of a step; serving starts after {ready}, the others follow when idle"
        )
        memory.append(MemoryLine("kv cache", sizes.size_bytes))
        return KVBudget(limits.block_size, sizes.groups, sizes.max_total_tokens, memory)

    def _kv_groups(self, block_size: int) -> list[KVGroup]:
        groups = []
        for group, spec in enumerate(self._model.attention):
            layer_bytes = math.prod(spec.cache_shape(1, block_size)) * self._dtype.itemsize
            window = spec.window if self._capabilities.sliding_window else None
            groups.append(KVGroup(window, self._model.group_of_layer.count(group) * layer_bytes))
        return groups

    def _measure_activations(self, limits: ShardLimits) -> int:
        """Run the largest shapes over a cache of one block; returns what they take beyond what lasts, in bytes."""
        most_tokens = limits.max_total_tokens or min(self._model.max_positions, limits.max_step_tokens + 1)
        self._device.synchronize()
        self._device.reset_peak()
        before_bytes = self._device.memory().peak_bytes
        self._allocate(limits, most_tokens, [1] * len(self._model.attention))
        self._device.synchronize()
        return max(0, self._device.memory().peak_bytes - before_bytes)

    def _allocate(self, limits: ShardLimits, max_total_tokens: int, blocks: list[int]) -> PlanRunner:
        """Make caches and tables, and compile the shapes that together take any step; the others are queued."""
        assert self._decoder is not None, "load comes before warm_up"
        model, device, max_slots = self._model, self._device.torch_device, limits.max_slots
        caches = [
            self._device.zeros(model.attention[group].cache_shape(blocks[group] + 1, limits.block_size), self._dtype)
            for group in model.group_of_layer
        ]
        columns = -(-max_total_tokens // limits.block_size)
        state = make_state(max_slots, max_total_tokens, columns, 0, caches, rules=self._rules, states=(), device=device)
        # Rows that pad a step have one token, whose keys and values go to the scratch block.
        state.lengths_S[-1:] = 1
        eos_ids = [token for token in self._spec.eos_token_ids if 0 <= token < model.vocab_size]
        eos_ids_E = torch.tensor(eos_ids, dtype=torch.int64, device=device)
        slots = SlotTable(self._rules, max_slots, model.vocab_size, eos_ids_E)
        static = StaticModel(
            decoder=self._decoder,
            kernels=self._kernels,
            attention_kernels=self._attention_kernels,
            attention=model.attention,
            ropes=model.ropes,
            rotary_tables=[rotary_table(rope, max_total_tokens, device) for rope in model.ropes],
            scratch_blocks=blocks,
            slots=slots,
            block_size=limits.block_size,
            vocab_size=model.vocab_size,
            top_n=_MOST_TOP_N,
        )
        runner = StaticRunner(self._device, static, state, columns)
        runner.prepare_entries()
        plans = PlanRunner(runner, slots, limits.block_size)
        most_q_len = min(limits.max_step_tokens, max_total_tokens)
        largest = ShapeLimits(max_slots, limits.max_step_tokens, most_q_len, columns)
        self._waiting = deque(forward_shapes(largest, self._capabilities.buckets, limits.block_size))
        for _ in range(COVER_SHAPES):
            plans.prepare(self._waiting.popleft())
        return plans

    @torch.inference_mode()
    def _prepare_next(self) -> bool:
        if self._plans is not None and self._waiting:
            self._plans.prepare(self._waiting.popleft())
        return bool(self._waiting)

    # -- steps --------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _forward(self, plan: StepPlan) -> ForwardCalls:
        assert self._plans is not None, "warm_up comes before launch"
        return self._plans.forward(plan)

    @torch.inference_mode()
    def _sample(self, ticket: _Ticket, late: LateInputs | None) -> tuple[SampledCalls, DeviceEvent]:
        assert self._plans is not None, "warm_up comes before sample"
        sampled = self._plans.sample(ticket.plan, ticket.forward.result(), late)
        return sampled, self._device.record_event()
