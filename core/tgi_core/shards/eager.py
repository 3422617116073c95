"""The shard for devices that take any shape: core's decoder over a backend's kernels, step by step."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from tgi_core.contract import (
    AttentionBatch,
    Capabilities,
    Device,
    DeviceState,
    GraphMode,
    Kernels,
    KVBudget,
    KVGroup,
    LateInputs,
    LoadProgress,
    MemoryLine,
    ModelShard,
    NewSlot,
    Sampled,
    ShardLimits,
    ShardSpec,
    StepPlan,
    StepResult,
    Ticket,
)
from tgi_core.contract.states import StepRows
from tgi_core.errors import ExitCode, StartupError
from tgi_core.models.choose import choose_model
from tgi_core.models.model import Encoder, LoadedModel, LoadOptions, OwnCache
from tgi_core.models.rotary import rotary_table
from tgi_core.models.step import KVView, Step
from tgi_core.plugins import Plugins
from tgi_core.reference.sampling import WHOLE_ROWS
from tgi_core.sampling.params import Tier
from tgi_core.sampling.rules import RuleSet
from tgi_core.shards.batch import make_batch, sample_inputs
from tgi_core.shards.binding import bind_attention
from tgi_core.shards.checks import check_block_size, check_dtype
from tgi_core.shards.encoding import Encoding
from tgi_core.shards.faults import typed_faults
from tgi_core.shards.graphs import DecodeGraphs
from tgi_core.shards.memory import (
    ACTIVATIONS,
    STATES,
    check_states,
    decoder_limits,
    longest_encoder_input,
    refuse_activations,
    size_kv_cache,
)
from tgi_core.shards.prompts import PIECE_ROWS, PromptScores, next_logprobs, score_prompts
from tgi_core.shards.sampling import Sampler, StepTokens
from tgi_core.shards.slots import SlotTable
from tgi_core.shards.tables import apply_plan, make_state
from tgi_core.shards.worker import InlineWorker, ThreadWorker, Worker

_LOG = logging.getLogger(__name__)

_RESERVE_BYTES = 64 << 20
"""Kept free beside weights, activations and cache: fragmentation, and what libraries take behind torch's back."""

_HOST_WARM_UP_TOKENS = 256
"""A step of this size is measured on the host, where a real one takes seconds; activations grow with the tokens."""


class _Forward(NamedTuple):
    """A computed forward: logits of the rows that sample (None without such rows) and their slots.

    A replayed step has sampled already.
    """

    logits_BV: Tensor | None
    slots_B: Tensor
    tokens: StepTokens | None = None
    prompt_scores: PromptScores | None = None


class _Ticket:
    """A launched step."""

    def __init__(self, plan: StepPlan, forward: Future[_Forward]) -> None:
        self.plan = plan
        self.forward = forward
        self.tokens: Future[StepTokens] | None = None

    @property
    def step(self) -> int:
        return self.plan.step


class EagerShard(ModelShard):
    """A decoder-only model on one torch device.

    All state of requests lies in device tables by slot, so a step can be launched while the one before it still runs.

    Args:
        spec: what to build.
        capabilities: of the device's backend.
        device: where to run.
        kernels: the backend's operations; what they cannot do for this model is bound to the reference.

    Attributes:
        notes: what a user should know, such as operations bound to the reference.

    Raises:
        StartupError: the model's configuration, its type or its dtype is not supported.
    """

    def __init__(self, spec: ShardSpec, capabilities: Capabilities, device: Device, kernels: Kernels) -> None:
        self._spec = spec
        self._capabilities = capabilities
        self._device = device
        self._kernels = kernels
        check_dtype(spec, capabilities)
        self._dtype: torch.dtype = getattr(torch, spec.dtype)
        self._model = choose_model(spec.model_dir, trust_remote_code=spec.trust_remote_code)
        self._windows = tuple(attention.window for attention in self._model.attention)
        self._rules = RuleSet(Plugins.discover().logits_rules())
        attention = bind_attention(kernels, self._model.attention)
        for attention_spec, bound in zip(self._model.attention, attention.kernels, strict=True):
            sizes = capabilities.head_dims if bound is kernels else ()
            if sizes and attention_spec.head_dim not in sizes:
                raise StartupError(
                    f"The device's attention does not take heads of {attention_spec.head_dim} features.",
                    "Use another backend.",
                    ExitCode.BACKEND,
                )
        self.notes: list[str] = [*kernels.notes, *attention.notes]
        if self._model.reason:
            self.notes.append(f"runs as {self._model.path}. {self._model.reason}")
        self.extra_parameters = self._rules.extra_parameters
        self._attention_kernels = attention.kernels
        # The reference's attention reads lengths on the host, where a recorded step does not know them.
        own_attention = all(bound is kernels for bound in self._attention_kernels)
        self._records = capabilities.graph is not GraphMode.NONE and own_attention and self._model.records(kernels)
        self._worker: Worker = InlineWorker() if capabilities.asynchronous else ThreadWorker(spec.cpu_threads)
        self._decoder: LoadedModel | None = None
        self._own_cache: OwnCache | None = None
        self._encoder: Encoder | None = None
        self._encoding: Encoding | None = None
        self._state: DeviceState | None = None
        self._slots: SlotTable | None = None
        self._sampler: Sampler | None = None
        self._rotary_tables: tuple[Tensor, ...] = ()
        self._graphs: DecodeGraphs | None = None
        self._decode_starts_B = torch.empty(0)
        self._block_size = 0
        self._weights_bytes = 0

    def load(self, progress: LoadProgress) -> None:
        self._worker.submit(partial(self._load, progress)).result()

    def warm_up(self, limits: ShardLimits) -> KVBudget:
        return self._worker.submit(partial(self._warm_up, limits)).result()

    def launch(self, plan: StepPlan) -> Ticket:
        return _Ticket(plan, self._worker.submit(partial(self._forward, plan)))

    def sample(self, ticket: Ticket, late: LateInputs | None) -> None:
        assert isinstance(ticket, _Ticket)
        ticket.tokens = self._worker.submit(partial(self._sample, ticket, late))

    def collect(self, ticket: Ticket) -> StepResult:
        assert isinstance(ticket, _Ticket)
        assert ticket.tokens is not None, "sample comes before collect"
        with typed_faults():
            tokens = ticket.tokens.result()
            tokens.event.synchronize()
        assert self._sampler is not None
        prompt_scores = ticket.forward.result().prompt_scores
        prompt_logprobs = [] if prompt_scores is None else prompt_scores.to_results()
        return self._sampler.result(ticket.plan, tokens, prompt_logprobs)

    def use_idle_time(self) -> bool:
        return self._worker.submit(self._record_next).result()

    def close(self) -> None:
        self._worker.close()
        self._graphs = None
        self._decoder = None
        self._state = None
        self._slots = None
        self._sampler = None
        self._encoder = self._encoding = None
        self._rotary_tables = ()

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
        self._decoder, self._weights_bytes, self._own_cache = loaded.model, loaded.weights_bytes, loaded.own_cache
        self._encoder = loaded.encoder
        self.notes += loaded.notes
        self.whole_prompts = self._own_cache is not None and self._own_cache.whole_prompts

    @torch.inference_mode()
    def _warm_up(self, limits: ShardLimits) -> KVBudget:
        check_block_size(limits, self._capabilities)
        self._block_size = limits.block_size
        states = [MemoryLine(STATES, size_bytes)] if (size_bytes := self._states_bytes(limits.max_slots)) else []
        check_states(limits, [MemoryLine("weights", self._weights_bytes), *states], self._free_bytes(limits))
        try:
            activations_bytes = self._measure_activations(limits)
        except torch.OutOfMemoryError as error:
            raise refuse_activations(limits, self._weights_bytes) from error
        memory = [MemoryLine("weights", self._weights_bytes), MemoryLine(ACTIVATIONS, activations_bytes)]
        if self._records:
            memory.append(MemoryLine("graphs", self._measure_graphs(limits)))
        memory += states
        # The measurement's states are as large as those to come.
        self._state = self._sampler = None
        free_bytes = self._free_bytes(limits)
        check_states(limits, memory, free_bytes)
        left_bytes = free_bytes - sum(line.size_bytes for line in memory[1:])
        available_bytes = max(0, int(left_bytes * self._device.kv_cache_share))
        encoder_tokens = self._encoder_tokens(limits)
        if self._encoder is not None:
            limits = decoder_limits(limits, self._model.max_positions, self._encoder.max_tokens)
        sizes = size_kv_cache(
            self._kv_groups(),
            limits,
            self._model.max_positions,
            available_bytes,
            memory,
            encoder_tokens=encoder_tokens,
        )
        blocks = [] if self._own_cache is not None else [budget.blocks for budget in sizes.groups]
        self._allocate(limits.max_slots, sizes.max_total_tokens, blocks, sizes.max_encoder_tokens)
        memory.append(MemoryLine("kv cache", sizes.size_bytes))
        if self._records:
            self._graphs = self._record_graphs(limits.max_slots)
        has_states = bool(self._model.states) or self._own_cache is not None
        return KVBudget(
            limits.block_size, sizes.groups, sizes.max_total_tokens, memory, has_states, sizes.max_encoder_tokens
        )

    def _encoder_tokens(self, limits: ShardLimits) -> int:
        """The longest input of the encoder; 0 without one."""
        return 0 if self._encoder is None else longest_encoder_input(limits, self._encoder.max_tokens)

    def _states_bytes(self, max_slots: int) -> int:
        """Memory of what slots keep beside the KV cache, the scratch slot's too."""
        sizes = (math.prod(state.shape) * (state.dtype or self._dtype).itemsize for state in self._model.states)
        own_bytes = 0 if self._own_cache is None else self._own_cache.bytes_per_slot
        return (max_slots + 1) * (sum(sizes) + own_bytes)

    def _free_bytes(self, limits: ShardLimits) -> int:
        """What is left beside the weights for activations, states and caches."""
        return int(self._device.memory().free_bytes * limits.memory_fraction) - _RESERVE_BYTES

    def _measure_activations(self, limits: ShardLimits) -> int:
        """Run the largest step over a cache of one block; returns the memory it took beyond what lasts, in bytes."""
        num_tokens = limits.max_step_tokens
        if not self._capabilities.asynchronous:
            num_tokens = min(num_tokens, max(_HOST_WARM_UP_TOKENS, limits.max_slots))
        num_rows = min(limits.max_slots, num_tokens)
        q_lens = _long_rows(num_tokens, num_rows, self._model.max_positions)
        encoder_tokens = self._encoder_tokens(limits)
        inputs = _long_rows(num_tokens, num_rows, encoder_tokens) if encoder_tokens else [0] * num_rows
        self._allocate(num_rows, num_tokens + 1, [1] * len(self._windows), encoder_tokens)
        assert self._state is not None
        for state in self._state.states:
            # A device may take memory when it is first written: not as part of the step.
            state.zero_()
        self._device.synchronize()
        self._device.reset_peak()
        before_bytes = self._device.memory().peak_bytes
        # Whole distributions are looked at in pieces, so more such rows would take more time but no more memory.
        wanted = [self._rules.demand_all(whole=slot < WHOLE_ROWS) for slot in range(num_rows)]
        plan = StepPlan(
            step=0,
            slots=list(range(num_rows)),
            epochs=[0] * num_rows,
            q_lens=q_lens,
            kv_lens=q_lens,
            samples=[True] * num_rows,
            num_decodes=q_lens.count(1),
            tier=Tier.FULL,
            new_slots=[
                NewSlot(slot, [0] * q_len, q_len, wanted[slot], encoder_ids=[0] * inputs[slot])
                for slot, q_len in enumerate(q_lens)
            ],
        )
        forward = self._forward(plan)
        self._device.synchronize()
        # Layers need more the more tokens there are; sampling goes by rows, of which there are as many as there can be.
        layers_bytes = (self._device.memory().peak_bytes - before_bytes) * limits.max_step_tokens // num_tokens
        mask = b"\xff" * (4 * -(-self._model.vocab_size // 32))
        self._sample_rows(plan, forward, LateInputs(list(range(num_rows)), mask * num_rows))
        if self._own_cache is not None:
            self._own_cache.free(plan.slots)
        self._measure_prompt_scores(min(num_tokens, PIECE_ROWS))
        self._device.synchronize()
        return max(0, layers_bytes, self._device.memory().peak_bytes - before_bytes)

    def _measure_prompt_scores(self, num_tokens: int) -> None:
        """Run the piece of a prompt's log-probabilities that takes the most memory."""
        assert self._decoder is not None, "load comes before warm_up"
        hidden_RE = self._decoder.hidden_E.repeat(num_tokens, 1)
        next_logprobs(hidden_RE, torch.zeros(num_tokens, dtype=torch.int32, device=hidden_RE.device), self._decoder)

    def _measure_graphs(self, limits: ShardLimits) -> int:
        """Record the largest step over the measurement's tables; returns the memory it holds, which all share."""
        self._device.reset_peak()
        before_bytes = self._device.memory().peak_bytes
        self._record_graphs(limits.max_slots, only_largest=True)
        return max(0, self._device.memory().peak_bytes - before_bytes)

    def _record_graphs(self, max_slots: int, *, only_largest: bool = False) -> DecodeGraphs:
        tiers = [tier for tier in Tier if self._kernels.captures(tier)]
        assert self._decoder is not None, "load comes before warm_up"
        return DecodeGraphs(
            self._device,
            self._decode,
            self._decode_hidden,
            hidden_E=self._decoder.hidden_E,
            tiers=tiers,
            max_slots=max_slots,
            only_largest=only_largest,
        )

    @torch.inference_mode()
    def _record_next(self) -> bool:
        if self._graphs is None:
            return False
        try:
            return self._graphs.record_next()
        except torch.OutOfMemoryError:
            _LOG.warning("There is no memory for more recorded steps: some are padded to a larger number of rows.")
            self._graphs.stop_recording()
            return False

    def _kv_groups(self) -> list[KVGroup]:
        assert self._decoder is not None, "load comes before warm_up"
        if self._own_cache is not None:
            own = KVGroup(None, self._own_cache.bytes_per_token * self._block_size)
            inputs = KVGroup(None, self._own_cache.bytes_per_encoder_token * self._block_size, cross=True)
            return [own] if self._encoder is None else [own, inputs]
        groups = []
        for group, spec in enumerate(self._model.attention):
            layer_bytes = math.prod(spec.cache_shape(1, self._block_size)) * self._dtype.itemsize
            # Where windows are not supported their blocks are kept to the end; attention still looks back no further.
            window = spec.window if self._capabilities.sliding_window else None
            groups.append(KVGroup(window, self._model.group_of_layer.count(group) * layer_bytes, spec.cross))
        return groups

    def _allocate(self, max_slots: int, max_total_tokens: int, blocks: list[int], max_encoder_tokens: int = 0) -> None:
        """Make caches and tables; they replace those of a measurement."""
        assert self._decoder is not None, "load comes before warm_up"
        model = self._model
        self._state = self._sampler = None
        caches = [
            # One block more than the scheduler knows of: the scratch block.
            self._device.zeros(model.attention[group].cache_shape(blocks[group] + 1, self._block_size), self._dtype)
            for group in model.group_of_layer
        ]
        states = [
            self._device.zeros((max_slots + 1, *state.shape), state.dtype or self._dtype) for state in model.states
        ]
        blocks_per_slot = -(-max(max_total_tokens, max_encoder_tokens) // self._block_size)
        self._state = make_state(
            max_slots,
            max_total_tokens,
            blocks_per_slot,
            len(self._windows),
            caches,
            rules=self._rules,
            states=states,
            device=self._device.torch_device,
        )
        # Rows that pad a step have one token, whose keys and values go to the scratch block.
        self._state.lengths_S[-1:] = 1
        for table_SM, scratch_block in zip(self._state.block_tables, blocks, strict=True):
            table_SM[-1:] = scratch_block
        device = self._device.torch_device
        eos_ids = [token for token in self._spec.eos_token_ids if 0 <= token < model.vocab_size]
        eos_ids_E = torch.tensor(eos_ids, dtype=torch.int64, device=device)
        self._slots = SlotTable(self._rules, max_slots, model.vocab_size, eos_ids_E)
        self._sampler = Sampler(self._device, self._kernels, self._state, self._slots)
        if self._encoder is not None:
            self._encoding = Encoding(self._encoder, model.attention, max_slots, self._block_size)
        self._decode_starts_B = torch.arange(max_slots + 1, device=device)
        self._rotary_tables = tuple(rotary_table(rope, max_total_tokens, device) for rope in model.ropes)

    @torch.inference_mode()
    def _forward(self, plan: StepPlan) -> _Forward:
        state, slots, decoder = self._state, self._slots, self._decoder
        assert state is not None, "warm_up comes before launch"
        assert slots is not None
        assert decoder is not None
        if self._own_cache is not None:
            self._own_cache.free([*plan.freed_slots, *(new.slot for new in plan.new_slots)])
        apply_plan(plan, state, slots, self._model.group_of_layer, self._kernels)
        if self._graphs is not None and self._graphs.takes(plan):
            if self._graphs.samples(plan):
                decoded = self._graphs.replay(plan)
                return _Forward(None, decoded.ids_B, StepTokens(Sampled(*decoded), self._device.record_event()))
            hidden_BE, slots_B = self._graphs.replay_hidden(plan)
            return _Forward(decoder.logits(hidden_BE), slots_B)
        batch = make_batch(plan, state, self._windows, self._block_size)
        attention = batch.attention
        if self._encoding is not None:
            self._encoding.enter(plan, state)
            attention = self._encoding.add_cross(attention, plan, state)
        hidden_TE = self._hidden(state, decoder, (batch.ids_T, batch.positions_T), batch.rows, attention)
        prompt_scores = score_prompts(plan, hidden_TE, state, slots, decoder)
        if not any(plan.samples):
            return _Forward(None, batch.sample_slots_B, prompt_scores=prompt_scores)
        if batch.sample_tokens_B is not None:
            hidden_TE = hidden_TE.index_select(0, batch.sample_tokens_B)
        return _Forward(decoder.logits(hidden_TE), batch.sample_slots_B, prompt_scores=prompt_scores)

    def _hidden(
        self,
        state: DeviceState,
        decoder: LoadedModel,
        tokens: tuple[Tensor, Tensor],
        rows: StepRows,
        batches: Sequence[AttentionBatch],
    ) -> Tensor:
        """The decoder's hidden states [T, E] of some tokens: their ids and positions."""
        ids_T, positions_T = tokens
        rotaries = []
        for table, rope in zip(self._rotary_tables, self._model.ropes, strict=True):
            cos_sin_T2R = table.index_select(0, positions_T)
            half = rope.rotary_dim // 2
            rotaries.append((cos_sin_T2R[:, :half], cos_sin_T2R[:, half:]))
        views = [
            KVView(batch.slot_mapping_T, kernels.prepare_attention(batch, spec))
            for batch, kernels, spec in zip(batches, self._attention_kernels, self._model.attention, strict=True)
        ]
        return decoder.hidden(Step(ids_T, positions_T, rotaries, rows, views, state.kv, state.states))

    def _decode_hidden(self, slots_B: Tensor) -> Tensor:
        """Hidden states of each slot's last token, out of the tables; see ``shards.graphs.DecodeHidden``."""
        state, decoder = self._state, self._decoder
        assert state is not None
        assert decoder is not None
        inputs = self._kernels.decode_inputs(state, slots_B)
        num_rows, max_length = len(slots_B), state.tokens_SL.shape[1]
        q_lens = [1] * num_rows
        starts_B = self._decode_starts_B[: num_rows + 1]
        rows = StepRows(slots_B, starts_B, inputs.positions_B, q_lens, num_rows, slots=())
        batches = [
            AttentionBatch(
                q_lens=q_lens,
                kv_lens=[max_length] * num_rows,
                num_decodes=num_rows,
                q_starts_B=rows.q_starts_B,
                kv_lens_B=inputs.kv_lens_B,
                block_tables_BM=block_tables_BM,
                slot_mapping_T=slot_mapping_B,
                block_size=self._block_size,
                window=window,
            )
            for block_tables_BM, slot_mapping_B, window in zip(
                inputs.block_tables, inputs.slot_mappings, self._windows, strict=True
            )
        ]
        return self._hidden(state, decoder, (inputs.ids_B, inputs.positions_B), rows, batches)

    def _decode(self, slots_B: Tensor, tier: Tier) -> tuple[Tensor, Tensor]:
        """One token for each slot, out of the tables and back into them; see ``shards.graphs.Decode``."""
        state, decoder = self._state, self._decoder
        assert state is not None
        assert decoder is not None
        logits_BV = decoder.logits(self._decode_hidden(slots_B))
        sampled = self._kernels.sample(logits_BV, sample_inputs(state, slots_B, tier))
        self._kernels.advance_tables(state.tokens_SL, state.lengths_S, slots_B, sampled.ids_B)
        return sampled.ids_B, sampled.logprobs_B

    def _sample(self, ticket: _Ticket, late: LateInputs | None) -> StepTokens:
        return self._sample_rows(ticket.plan, ticket.forward.result(), late)

    @torch.inference_mode()
    def _sample_rows(self, plan: StepPlan, forward: _Forward, late: LateInputs | None) -> StepTokens:
        if forward.tokens is not None:
            return forward.tokens
        assert self._sampler is not None, "warm_up comes before sample"
        return self._sampler.sample(plan, forward.logits_BV, forward.slots_B, late)


def _long_rows(num_tokens: int, num_rows: int, longest: int) -> list[int]:
    """Lengths of rows that have ``num_tokens`` together, or as many as there can be: as few and as long ones as
    possible, at the end."""
    lens = [1] * num_rows
    left = num_tokens - num_rows
    for row in reversed(range(num_rows)):
        more = min(left, longest - 1)
        lens[row] += more
        left -= more
    return lens
