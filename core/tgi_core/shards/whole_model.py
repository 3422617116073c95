"""The shard for devices whose library owns the whole model: it gives logits, the core does everything around them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tgi_core.contract import (
    Capabilities,
    Device,
    DeviceState,
    Kernels,
    KVBudget,
    KVGroup,
    KVGroupBudget,
    LateInputs,
    LoadProgress,
    ShardLimits,
    ShardSpec,
    StepPlan,
    StepResult,
)
from tgi_core.errors import ExitCode, StartupError
from tgi_core.plugins import Plugins
from tgi_core.reference import ReferenceKernels
from tgi_core.sampling.rules import RuleSet
from tgi_core.shards.checks import check_block_size, check_dtype
from tgi_core.shards.pipelined import PipelinedShard
from tgi_core.shards.prompts import PromptScores, RowChunk, token_logprobs
from tgi_core.shards.sampling import Sampler, StepTokens
from tgi_core.shards.slots import SlotTable
from tgi_core.shards.tables import apply_plan, make_state
from tgi_core.shards.worker import ThreadWorker

_CANNOT = ("mixed_batches", "chunked_prefill", "prefix_cache", "sliding_window")


class WholeForward(NamedTuple):
    """Logits of the rows that sample, their slots, and what prompts' log-probabilities were asked for."""

    logits_BV: Tensor | None
    slots_B: Tensor
    prompt_scores: PromptScores | None


class WholeModelShard(PipelinedShard[WholeForward, StepTokens]):
    """Slots instead of blocks: a cache entry is as long as a sequence, and there is one for each slot.

    A backend derives from it and says how prompts and next tokens are computed. Tables, rules and sampling live on the
    host. Its ``Capabilities`` declare ``ShapeMode.WHOLE_MODEL``, and neither mixed steps nor chunked prefill nor a
    prefix cache nor sliding windows.

    Args:
        spec: what to build.
        capabilities: of the device's backend.
        device: where the library runs; only its events are asked for.

    Raises:
        StartupError: the device does not compute in the type asked for, or its backend declares what a library that
            owns the cache cannot do.
    """

    def __init__(self, spec: ShardSpec, capabilities: Capabilities, device: Device) -> None:
        check_dtype(spec, capabilities)
        declared = [name for name in _CANNOT if getattr(capabilities, name)]
        if declared:
            raise StartupError(
                f"The backend declares {', '.join(declared)}, which a shard of whole models cannot do.",
                "Set these to False in what its capabilities() returns.",
                ExitCode.BACKEND,
            )
        super().__init__(ThreadWorker(spec.cpu_threads))
        self._capabilities = capabilities
        self._device = device
        self._kernels: Kernels = ReferenceKernels()
        self._rules = RuleSet(Plugins.discover().logits_rules())
        self.extra_parameters = self._rules.extra_parameters
        self._eos_token_ids = spec.eos_token_ids
        self._state: DeviceState | None = None
        self._slots: SlotTable | None = None
        self._sampler: Sampler | None = None

    # -- what a backend writes ----------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Width of the logits."""

    @abstractmethod
    def load_weights(self, progress: LoadProgress) -> None:
        """See ``ModelShard.load``."""

    @abstractmethod
    def prefill(self, slot: int, ids_T: Tensor) -> Tensor:
        """Compute a prompt whole, into the slot's cache: int64 [T] -> logits of each position [T, V], on the host."""

    @abstractmethod
    def decode(self, slots: Sequence[int], ids_B: Tensor, positions_B: Tensor) -> Tensor:
        """Compute one token of each slot: int64 [B] ids and positions -> logits [B, V], on the host."""

    @abstractmethod
    def make_caches(self, limits: ShardLimits) -> tuple[int, int]:
        """Make one cache entry for each slot; returns the tokens an entry holds and its size in bytes.

        Raises:
            StartupError: the limits do not fit.
        """

    # -- what core does with it ---------------------------------------------------------------------------------------

    def _load(self, progress: LoadProgress) -> None:
        self.load_weights(progress)

    def _warm_up(self, limits: ShardLimits) -> KVBudget:
        check_block_size(limits, self._capabilities)
        entry_tokens, entry_bytes = self.make_caches(limits)
        host = torch.device("cpu")
        self._state = make_state(limits.max_slots, entry_tokens, 0, 0, (), rules=self._rules, states=(), device=host)
        eos_ids = [token for token in self._eos_token_ids if 0 <= token < self.vocab_size]
        self._slots = SlotTable(self._rules, limits.max_slots, self.vocab_size, torch.tensor(eos_ids).long())
        self._sampler = Sampler(self._device, self._kernels, self._state, self._slots)
        group = KVGroupBudget(KVGroup(None, entry_bytes), limits.max_slots)
        return KVBudget(entry_tokens, [group], entry_tokens, [])

    def _forward(self, plan: StepPlan) -> WholeForward:
        state, slots = self._state, self._slots
        assert state is not None, "warm_up comes before launch"
        assert slots is not None
        apply_plan(plan, state, slots, (), self._kernels)
        slots_B = torch.tensor([slot for slot, samples in zip(plan.slots, plan.samples, strict=True) if samples])
        if plan.num_decodes == len(plan.slots):
            positions_B = state.lengths_S[slots_B].long() - 1
            return WholeForward(
                self.decode(plan.slots, state.tokens_SL[slots_B, positions_B].long(), positions_B), slots_B, None
            )
        rows, chunks, scored = [], [], []
        for row, (slot, length) in enumerate(zip(plan.slots, plan.kv_lens, strict=True)):
            logits_TV = self.prefill(slot, state.tokens_SL[slot, :length].long())
            rows.append(logits_TV[-1])
            if row in plan.prompt_logprobs:
                num_tokens = slots[slot].prompt_len - 1
                chunks.append(RowChunk(slot, plan.epochs[row], 1, num_tokens))
                scored.append(token_logprobs(logits_TV[:num_tokens], state.tokens_SL[slot, 1 : num_tokens + 1]))
        scores = PromptScores(chunks, torch.cat(scored)) if chunks else None
        return WholeForward(torch.stack(rows), slots_B, scores)

    def _sample(self, plan: StepPlan, forward: WholeForward, late: LateInputs | None) -> StepTokens:
        assert self._sampler is not None
        return self._sampler.sample(plan, forward.logits_BV, forward.slots_B, late)

    def _result(self, plan: StepPlan, forward: WholeForward, sampled: StepTokens) -> StepResult:
        assert self._sampler is not None
        scores = forward.prompt_scores
        return self._sampler.result(plan, sampled, [] if scores is None else scores.to_results())

    def _release(self) -> None:
        self._state = self._slots = self._sampler = None
