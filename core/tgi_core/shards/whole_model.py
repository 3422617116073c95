"""The shard for devices whose library owns the whole model: it gives logits or tokens, the core does the rest."""

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
    Sampled,
    SampleInputs,
    ShardLimits,
    ShardSpec,
    StepPlan,
    StepResult,
    UnsupportedParameter,
)
from tgi_core.errors import ExitCode, StartupError
from tgi_core.model_folder import ModelFolder
from tgi_core.plugins import Plugins
from tgi_core.reference import ReferenceKernels
from tgi_core.sampling.params import SamplingParams, Tier
from tgi_core.sampling.rules import RuleSet
from tgi_core.shards.batch import sample_inputs
from tgi_core.shards.checks import check_block_size, check_dtype
from tgi_core.shards.pipelined import PipelinedShard
from tgi_core.shards.prompts import PromptScores, RowChunk, token_logprobs
from tgi_core.shards.sampling import Sampler, StepTokens
from tgi_core.shards.slots import SlotTable
from tgi_core.shards.tables import apply_plan, make_state
from tgi_core.shards.worker import ThreadWorker

_CANNOT = ("mixed_batches", "chunked_prefill", "prefix_cache", "sliding_window")
_LIBRARIES_SAMPLE_BY = ("do_sample", "temperature", "top_k", "top_p")
_NO_WORK_OF_A_SAMPLER = ("choice", "watermark_gamma")
_NO_EFFECT = (
    "--kv-cache-memory and --max-batch-total-tokens have no effect: the cache is as large as --max-batch-size and "
    "--max-total-tokens make it"
)


class WholeForward(NamedTuple):
    """A forward of rows that all sample.

    Attributes:
        output: logits [B, V], or int64 [B] tokens where the library samples.
        slots_B: int64, the rows' slots.
        prompt_scores: what prompts' log-probabilities were asked for.
    """

    output: Tensor
    slots_B: Tensor
    prompt_scores: PromptScores | None


def beyond_a_library_that_samples(reason: str) -> list[UnsupportedParameter]:
    """``ModelShard.unsupported_parameters`` of a library that samples by temperature, top-k and top-p alone."""
    possible = (*_LIBRARIES_SAMPLE_BY, *_NO_WORK_OF_A_SAMPLER)
    names = [name for name in SamplingParams.__struct_fields__ if name not in possible]
    return [UnsupportedParameter(name, reason) for name in (*names, "grammar", "logprobs", "prompt_logprobs")]


class WholeModelShard(PipelinedShard[WholeForward, StepTokens]):
    """Slots instead of blocks: a cache entry is as long as a sequence, and there is one for each slot.

    A backend derives from it and says how prompts and next tokens are computed. Tables, rules and sampling live on the
    host. Its ``Capabilities`` declare ``ShapeMode.WHOLE_MODEL``, and neither mixed steps nor chunked prefill nor a
    prefix cache nor sliding windows. What the library keeps from requests it says in ``unsupported_parameters``: one
    that gives the logits of a prompt's last position alone has no "prompt_logprobs".

    Attributes:
        library_samples: the library chooses the tokens, so that no logits come to the host. Its log-probabilities are
            nan; ``beyond_a_library_that_samples`` names what requests cannot have.

    Args:
        spec: what to build.
        capabilities: of the device's backend.
        device: where the library runs; only its events are asked for.

    Raises:
        StartupError: the device does not compute in the type asked for, or its backend declares what a library that
            owns the cache cannot do.
    """

    library_samples: bool = False

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
        self._folder = ModelFolder(spec.model_dir)
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
    def prefill(self, slot: int, ids_T: Tensor, sampling: SampleInputs | None) -> Tensor:
        """Compute a prompt whole, into the slot's cache, which may hold another sequence's.

        Args:
            slot: whose.
            ids_T: int64.
            sampling: with ``library_samples`` the slot's parameters, of the sampled tier.

        Returns:
            On the host, logits of each position [T, V] or of the last alone [1, V]; with ``library_samples`` the next
            token, int64 [1].
        """

    @abstractmethod
    def decode(self, slots: Sequence[int], ids_B: Tensor, positions_B: Tensor, sampling: SampleInputs | None) -> Tensor:
        """Compute one token of each of some slots; what other slots hold stays.

        Args:
            slots: whose, in any order.
            ids_B, positions_B: int64.
            sampling: as above, a row each.

        Returns:
            On the host and in the order of ``slots``: logits [B, V], or with ``library_samples`` tokens, int64 [B].
        """

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
        _check_length(limits, self._folder)
        entry_tokens, entry_bytes = self.make_caches(limits)
        if limits.kv_cache_bytes is not None or limits.kv_cache_tokens is not None:
            self.notes = [*self.notes, _NO_EFFECT]
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
        slots_B = torch.tensor(plan.slots)
        sampling = sample_inputs(state, slots_B, Tier.SAMPLED) if self.library_samples else None
        if plan.num_decodes == len(plan.slots):
            positions_B = state.lengths_S[slots_B].long() - 1
            ids_B = state.tokens_SL[slots_B, positions_B].long()
            return WholeForward(self.decode(plan.slots, ids_B, positions_B, sampling), slots_B, None)
        outputs, chunks, scored = [], [], []
        for row, (slot, length) in enumerate(zip(plan.slots, plan.kv_lens, strict=True)):
            row_sampling = sampling.take(torch.tensor([row])) if sampling is not None else None
            output = self.prefill(slot, state.tokens_SL[slot, :length].long(), row_sampling)
            outputs.append(output[-1])
            if row in plan.prompt_logprobs:
                num_tokens = slots[slot].prompt_len - 1
                chunks.append(RowChunk(slot, plan.epochs[row], 1, num_tokens))
                scored.append(token_logprobs(output[:num_tokens], state.tokens_SL[slot, 1 : num_tokens + 1]))
        scores = PromptScores(chunks, torch.cat(scored)) if chunks else None
        return WholeForward(torch.stack(outputs), slots_B, scores)

    def _sample(self, plan: StepPlan, forward: WholeForward, late: LateInputs | None) -> StepTokens:
        assert self._state is not None
        assert self._sampler is not None
        if not self.library_samples:
            return self._sampler.sample(plan, forward.output, forward.slots_B, late)
        ids_B = forward.output
        self._kernels.advance_tables(self._state.tokens_SL, self._state.lengths_S, forward.slots_B, ids_B)
        unknown_B = torch.full((len(ids_B),), torch.nan)
        return StepTokens(Sampled(ids_B, unknown_B), self._device.record_event())

    def _result(self, plan: StepPlan, forward: WholeForward, sampled: StepTokens) -> StepResult:
        assert self._sampler is not None
        scores = forward.prompt_scores
        return self._sampler.result(plan, sampled, [] if scores is None else scores.to_results())

    def _release(self) -> None:
        self._state = self._slots = self._sampler = None


def _check_length(limits: ShardLimits, folder: ModelFolder) -> None:
    longest, asked = folder.max_position_embeddings, limits.max_total_tokens
    if asked is not None and longest is not None and asked > longest:
        raise StartupError(
            f"--max-total-tokens {asked} is more than the {longest} tokens of the model.",
            f"Set it to {longest} or less.",
            ExitCode.USAGE,
        )
