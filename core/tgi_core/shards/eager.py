"""The shard for devices that take any shape: core's decoder over a backend's kernels, step by step."""

from __future__ import annotations

import torch

from tgi_core.contract import (
    Capabilities,
    Device,
    GraphMode,
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
from tgi_core.plugins import Plugins
from tgi_core.sampling.rules import RuleSet
from tgi_core.shards.checks import check_block_size
from tgi_core.shards.device_model import DeviceModel
from tgi_core.shards.eager_runner import EagerRunner, Forward, RunnerSizes
from tgi_core.shards.measuring import StepMeasure
from tgi_core.shards.memory import (
    ACTIVATIONS,
    STATES,
    check_states,
    decoder_limits,
    longest_encoder_input,
    refuse_activations,
    size_kv_cache,
)
from tgi_core.shards.pipelined import PipelinedShard
from tgi_core.shards.sampling import StepTokens
from tgi_core.shards.worker import make_worker

RESERVE_BYTES = 64 << 20
"""Kept free beside weights, activations and cache: fragmentation, and what libraries take behind torch's back."""


class EagerShard(PipelinedShard[Forward, StepTokens]):
    """A model on one torch device.

    All state of requests lies in device tables by slot, so a step can be launched while the one before it still runs.

    Args:
        spec: what to build.
        capabilities: of the device's backend.
        device: where to run.
        kernels: the backend's operations; what they cannot do for this model is bound to the reference.

    Raises:
        StartupError: the model's configuration, its type or its dtype is not supported.
    """

    def __init__(self, spec: ShardSpec, capabilities: Capabilities, device: Device, kernels: Kernels) -> None:
        super().__init__(make_worker(asynchronous=capabilities.asynchronous, cpu_threads=spec.cpu_threads))
        self._capabilities = capabilities
        self._device = device
        self._kernels = kernels
        self._model = DeviceModel(spec, capabilities, device, kernels)
        self._rules = RuleSet(Plugins.discover().logits_rules())
        self.notes: list[str] = self._model.notes
        self.extra_parameters = self._rules.extra_parameters
        # The reference's attention reads lengths on the host, where a recorded step does not know them.
        can_record = self._model.has_own_attention and self._model.model.records(kernels)
        self._records = capabilities.graph is not GraphMode.NONE and can_record
        self._runner: EagerRunner | None = None

    def use_idle_time(self) -> bool:
        return self._submit(self._record_next).result()

    @property
    def _running(self) -> EagerRunner:
        assert self._runner is not None, "warm_up comes before steps"
        return self._runner

    # -- start --------------------------------------------------------------------------------------------------------

    def _load(self, progress: LoadProgress) -> None:
        self._model.load(progress)
        self.whole_prompts = self._model.own_cache is not None and self._model.own_cache.whole_prompts

    def _warm_up(self, limits: ShardLimits) -> KVBudget:
        check_block_size(limits, self._capabilities)
        model = self._model
        weights = MemoryLine("weights", model.weights_bytes)
        states = [MemoryLine(STATES, size_bytes)] if (size_bytes := model.states_bytes(limits.max_slots)) else []
        check_states(limits, [weights, *states], self._free_bytes(limits))
        encoder_tokens = 0 if model.encoder is None else longest_encoder_input(limits, model.encoder.max_tokens)
        memory = [weights, *self._measure(limits, encoder_tokens), *states]
        # The measurement's states are as large as those to come.
        self._runner = None
        free_bytes = self._free_bytes(limits)
        check_states(limits, memory, free_bytes)
        left_bytes = free_bytes - sum(line.size_bytes for line in memory[1:])
        if model.encoder is not None:
            limits = decoder_limits(limits, model.model.max_positions, model.encoder.max_tokens)
        sizes = size_kv_cache(
            model.kv_groups(limits.block_size),
            limits,
            model.model.max_positions,
            max(0, int(left_bytes * self._device.kv_cache_share)),
            memory,
            encoder_tokens=encoder_tokens,
        )
        blocks = [] if model.own_cache is not None else [budget.blocks for budget in sizes.groups]
        self._runner = self._make_runner(
            RunnerSizes(limits.max_slots, sizes.max_total_tokens, limits.block_size, blocks, sizes.max_encoder_tokens)
        )
        if self._records:
            self._runner.record()
        memory.append(MemoryLine("kv cache", sizes.size_bytes))
        return KVBudget(
            limits.block_size,
            sizes.groups,
            sizes.max_total_tokens,
            memory,
            model.keeps_states,
            sizes.max_encoder_tokens,
        )

    def _make_runner(self, sizes: RunnerSizes) -> EagerRunner:
        return EagerRunner(self._model, self._device, self._kernels, self._rules, sizes)

    def _measure(self, limits: ShardLimits, encoder_tokens: int) -> list[MemoryLine]:
        """What the largest step takes, and the largest recorded one."""
        on_host = not self._capabilities.asynchronous
        step = StepMeasure(self._model, limits, encoder_tokens=encoder_tokens, on_host=on_host)
        blocks = [1] * len(self._model.windows)
        try:
            runner = self._make_runner(
                RunnerSizes(step.num_rows, step.num_tokens + 1, limits.block_size, blocks, encoder_tokens)
            )
            lines = [MemoryLine(ACTIVATIONS, step.run(runner, self._device, self._rules))]
        except torch.OutOfMemoryError as error:
            raise refuse_activations(limits, self._model.weights_bytes) from error
        if self._records:
            self._device.reset_peak()
            before_bytes = self._device.memory().peak_bytes
            runner.record(only_largest=True)
            lines.append(MemoryLine("graphs", max(0, self._device.memory().peak_bytes - before_bytes)))
        return lines

    def _free_bytes(self, limits: ShardLimits) -> int:
        """What is left beside the weights for activations, states and caches."""
        return int(self._device.memory().free_bytes * limits.memory_fraction) - RESERVE_BYTES

    # -- steps --------------------------------------------------------------------------------------------------------

    def _forward(self, plan: StepPlan) -> Forward:
        return self._running.forward(plan)

    def _sample(self, plan: StepPlan, forward: Forward, late: LateInputs | None) -> StepTokens:
        return self._running.sample(plan, forward, late)

    def _result(self, plan: StepPlan, forward: Forward, sampled: StepTokens) -> StepResult:
        return self._running.result(plan, forward, sampled)

    def _record_next(self) -> bool:
        return self._runner is not None and self._runner.record_next()

    def _release(self) -> None:
        self._runner = None
        self._model.unload()
