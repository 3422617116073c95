"""Runs the steps of an eager shard over one set of tables and caches."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tgi_core.contract import (
    AttentionBatch,
    Device,
    DeviceState,
    Kernels,
    LateInputs,
    Sampled,
    StepPlan,
    StepResult,
)
from tgi_core.contract.states import StepRows
from tgi_core.models.step import KVView, Step
from tgi_core.sampling.params import Tier
from tgi_core.sampling.rules import RuleSet
from tgi_core.shards.batch import make_batch, sample_inputs
from tgi_core.shards.device_model import DeviceModel
from tgi_core.shards.encoding import Encoding
from tgi_core.shards.graphs import DecodeGraphs
from tgi_core.shards.prompts import PromptScores, score_prompts
from tgi_core.shards.sampling import Sampler, StepTokens
from tgi_core.shards.slots import SlotTable
from tgi_core.shards.tables import apply_plan, make_state

_LOG = logging.getLogger(__name__)


class RunnerSizes(NamedTuple):
    """How large tables and caches are.

    Attributes:
        max_slots: requests that run at once.
        max_total_tokens: longest sequence of a slot.
        block_size: tokens in a KV block.
        blocks: of each KV group; none where the model keeps its cache itself.
        max_encoder_tokens: longest input of the encoder.
    """

    max_slots: int
    max_total_tokens: int
    block_size: int
    blocks: Sequence[int]
    max_encoder_tokens: int = 0


class Forward(NamedTuple):
    """A computed forward: logits of the rows that sample (None without such rows) and their slots.

    A replayed step has sampled already.
    """

    logits_BV: Tensor | None
    slots_B: Tensor
    tokens: StepTokens | None = None
    prompt_scores: PromptScores | None = None


class EagerRunner:
    """Tables, caches and recorded steps, and what is computed with them.

    Args:
        model: loaded.
        device: where to run.
        kernels: the backend's operations.
        rules: the shard's logits rules.
        sizes: of tables and caches.
    """

    def __init__(
        self, model: DeviceModel, device: Device, kernels: Kernels, rules: RuleSet, sizes: RunnerSizes
    ) -> None:
        self._model = model
        self._device = device
        self._kernels = kernels
        self._sizes = sizes
        self._graphs: DecodeGraphs | None = None
        max_slots, block_size = sizes.max_slots, sizes.block_size
        self.state: DeviceState = make_state(
            max_slots,
            sizes.max_total_tokens,
            -(-max(sizes.max_total_tokens, sizes.max_encoder_tokens) // block_size),
            len(model.windows),
            model.make_caches(sizes.blocks, block_size),
            rules=rules,
            states=model.make_states(max_slots),
            device=device.torch_device,
        )
        # Rows that pad a step have one token, whose keys and values go to the scratch block.
        self.state.lengths_S[-1:] = 1
        for table_SM, scratch_block in zip(self.state.block_tables, sizes.blocks, strict=True):
            table_SM[-1:] = scratch_block
        self._slots = SlotTable(rules, max_slots, model.model.vocab_size, model.eos_ids())
        self._sampler = Sampler(device, kernels, self.state, self._slots)
        self._encoding = None
        if model.encoder is not None:
            self._encoding = Encoding(model.encoder, model.model.attention, max_slots, block_size)
        self._decode_starts_B = torch.arange(max_slots + 1, device=device.torch_device)
        self._rotary_tables = model.make_rotary_tables(sizes.max_total_tokens)

    # -- steps --------------------------------------------------------------------------------------------------------

    def forward(self, plan: StepPlan) -> Forward:
        """Bring the plan's changes into the tables and compute its rows."""
        state, decoder, own_cache = self.state, self._model.decoder, self._model.own_cache
        if own_cache is not None:
            own_cache.free([*plan.freed_slots, *(new.slot for new in plan.new_slots)])
        apply_plan(plan, state, self._slots, self._model.model.group_of_layer, self._kernels)
        if self._graphs is not None and self._graphs.takes(plan):
            if self._graphs.samples(plan):
                decoded = self._graphs.replay(plan)
                return Forward(None, decoded.ids_B, StepTokens(Sampled(*decoded), self._device.record_event()))
            hidden_BE, slots_B = self._graphs.replay_hidden(plan)
            return Forward(decoder.logits(hidden_BE), slots_B)
        batch = make_batch(plan, state, self._model.windows, self._sizes.block_size)
        attention = batch.attention
        if self._encoding is not None:
            self._encoding.enter(plan, state)
            attention = self._encoding.add_cross(attention, plan, state)
        hidden_TE = self._hidden((batch.ids_T, batch.positions_T), batch.rows, attention)
        prompt_scores = score_prompts(plan, hidden_TE, state, self._slots, decoder)
        if not any(plan.samples):
            return Forward(None, batch.sample_slots_B, prompt_scores=prompt_scores)
        if batch.sample_tokens_B is not None:
            hidden_TE = hidden_TE.index_select(0, batch.sample_tokens_B)
        return Forward(decoder.logits(hidden_TE), batch.sample_slots_B, prompt_scores=prompt_scores)

    def sample(self, plan: StepPlan, forward: Forward, late: LateInputs | None) -> StepTokens:
        """Launch the sampling of a computed step."""
        if forward.tokens is not None:
            return forward.tokens
        return self._sampler.sample(plan, forward.logits_BV, forward.slots_B, late)

    def result(self, plan: StepPlan, forward: Forward, tokens: StepTokens) -> StepResult:
        """A collected step, whose tokens have arrived."""
        scores = forward.prompt_scores
        return self._sampler.result(plan, tokens, [] if scores is None else scores.to_results())

    def _hidden(self, tokens: tuple[Tensor, Tensor], rows: StepRows, batches: Sequence[AttentionBatch]) -> Tensor:
        """The decoder's hidden states [T, E] of some tokens: their ids and positions."""
        model = self._model
        ids_T, positions_T = tokens
        rotaries = []
        for table, rope in zip(self._rotary_tables, model.model.ropes, strict=True):
            cos_sin_T2R = table.index_select(0, positions_T)
            half = rope.rotary_dim // 2
            rotaries.append((cos_sin_T2R[:, :half], cos_sin_T2R[:, half:]))
        views = [
            KVView(batch.slot_mapping_T, kernels.prepare_attention(batch, spec))
            for batch, kernels, spec in zip(batches, model.attention_kernels, model.model.attention, strict=True)
        ]
        step = Step(ids_T, positions_T, rotaries, rows, views, self.state.kv, self.state.states)
        return model.decoder.hidden(step)

    # -- recorded steps -----------------------------------------------------------------------------------------------

    def record(self, *, only_largest: bool = False) -> None:
        """Record steps of decodes: the sizes to start with, or only the largest, to measure its memory."""
        tiers = [tier for tier in Tier if self._kernels.captures(tier)]
        self._graphs = DecodeGraphs(
            self._device,
            self._decode,
            self._decode_hidden,
            hidden_E=self._model.decoder.hidden_E,
            tiers=tiers,
            max_slots=self._sizes.max_slots,
            only_largest=only_largest,
        )

    def record_next(self) -> bool:
        """Record one more size; whether more are left."""
        if self._graphs is None:
            return False
        try:
            return self._graphs.record_next()
        except torch.OutOfMemoryError:
            _LOG.warning("There is no memory for more recorded steps: some are padded to a larger number of rows.")
            self._graphs.stop_recording()
            return False

    def _decode_hidden(self, slots_B: Tensor) -> Tensor:
        """Hidden states of each slot's last token, out of the tables; see ``shards.graphs.DecodeHidden``."""
        state = self.state
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
                block_size=self._sizes.block_size,
                window=window,
            )
            for block_tables_BM, slot_mapping_B, window in zip(
                inputs.block_tables, inputs.slot_mappings, self._model.windows, strict=True
            )
        ]
        return self._hidden((inputs.ids_B, inputs.positions_B), rows, batches)

    def _decode(self, slots_B: Tensor, tier: Tier) -> tuple[Tensor, Tensor]:
        """One token for each slot, out of the tables and back into them; see ``shards.graphs.Decode``."""
        state = self.state
        logits_BV = self._model.decoder.logits(self._decode_hidden(slots_B))
        sampled = self._kernels.sample(logits_BV, sample_inputs(state, slots_B, tier))
        self._kernels.advance_tables(state.tokens_SL, state.lengths_S, slots_B, sampled.ids_B)
        return sampled.ids_B, sampled.logprobs_B
