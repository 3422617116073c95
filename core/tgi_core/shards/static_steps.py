"""What a bucketed shard computes, as functions of the device state and of inputs whose shapes are fixed.

``enter`` brings a request into the tables, ``forward`` runs the model, ``sample`` makes tokens of its hidden states and
``score`` reads a prompt's log-probabilities out of them. None asks for a value, and no shape depends on one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tgi_core.contract import AttentionBatch, AttentionSpec, DeviceState, FlatBlocks, Kernels, NewSlot
from tgi_core.contract.states import StepRows
from tgi_core.models.model import LoadedModel
from tgi_core.models.ropes import RopeSpec
from tgi_core.models.step import KVView, Step
from tgi_core.sampling.params import MAX_BAD_WORD_TOKENS, MAX_BAD_WORDS, MAX_LOGIT_BIASES, Tier
from tgi_core.shards.batch import sample_inputs
from tgi_core.shards.prompts import next_logprobs
from tgi_core.shards.slots import SlotTable
from tgi_core.shards.tables import NO_BIAS, NO_TOKEN, integer_tables, slot_columns

Outputs = tuple[DeviceState, tuple[Tensor, ...]]


class StaticModel(NamedTuple):
    """What every step needs beside the state.

    Attributes:
        decoder: the loaded model.
        kernels: sample and advance the tables.
        attention_kernels, attention: for each KV group.
        ropes, rotary_tables: cos and sin of every position, [L, 2R], for each rotary embedding.
        scratch_blocks: for each KV group the block that padding is written to.
        slots: the host's part of the slot tables.
        block_size: tokens in a KV block.
        vocab_size: width of the logits.
        top_n: the most alternatives that are reported.
    """

    decoder: LoadedModel
    kernels: Kernels
    attention_kernels: Sequence[Kernels]
    attention: Sequence[AttentionSpec]
    ropes: Sequence[RopeSpec]
    rotary_tables: Sequence[Tensor]
    scratch_blocks: Sequence[int]
    slots: SlotTable
    block_size: int
    vocab_size: int
    top_n: int


# -- a request enters -------------------------------------------------------------------------------------------------


def pack_slot(new: NewSlot, slots: SlotTable, length: int) -> tuple[Tensor, ...]:
    """The inputs of ``enter`` for a request of at most ``length`` tokens."""
    slot = slots[new.slot]
    tokens_L = torch.zeros(length, dtype=torch.int32)
    tokens_L[: len(new.token_ids)] = torch.tensor(new.token_ids, dtype=torch.int32)
    integers, numbers = slot_columns(new, slots.rules)
    bias_ids_X = torch.zeros(MAX_LOGIT_BIASES, dtype=torch.int32)
    bias_values_X = torch.full((MAX_LOGIT_BIASES,), NO_BIAS)
    for index, (token_id, value) in enumerate(slot.biases[:MAX_LOGIT_BIASES]):
        bias_ids_X[index], bias_values_X[index] = token_id, value
    allowed_X = torch.full((MAX_LOGIT_BIASES,), NO_TOKEN, dtype=torch.int32)
    allowed = slot.allowed[:MAX_LOGIT_BIASES]
    allowed_X[: len(allowed)] = torch.tensor(allowed, dtype=torch.int32)
    words_WL = torch.full((MAX_BAD_WORDS, MAX_BAD_WORD_TOKENS), NO_TOKEN, dtype=torch.int32)
    for index, word in enumerate(slot.bad_words[:MAX_BAD_WORDS]):
        words_WL[index, -len(word) :] = torch.tensor(word, dtype=torch.int32)
    return (tokens_L, torch.tensor(integers), torch.tensor(numbers), bias_ids_X, bias_values_X, allowed_X, words_WL)


def enter(state: DeviceState, inputs: tuple[Tensor, ...]) -> Outputs:
    """Write a request's tokens and sampling parameters into the tables; see ``pack_slot``."""
    tokens_L, integers_X, numbers_X, bias_ids_X, bias_values_X, allowed_X, words_WL = inputs
    slot_1 = integers_X[:1]
    # Not in a view of the table: some devices record no change of one.
    state.tokens_SL.index_put_((slot_1, torch.arange(len(tokens_L), device=slot_1.device)), tokens_L)
    for index, table_S in enumerate(integer_tables(state), 1):
        table_S.index_copy_(0, slot_1, integers_X[index : index + 1].to(table_S.dtype))
    state.temperature_S.index_copy_(0, slot_1, numbers_X[:1])
    state.top_p_S.index_copy_(0, slot_1, numbers_X[1:2])
    state.rule_values_SP.index_copy_(0, slot_1, numbers_X[None, 2:])
    state.bias_ids_SX.index_copy_(0, slot_1, bias_ids_X[None])
    state.bias_values_SX.index_copy_(0, slot_1, bias_values_X[None])
    state.allowed_ids_SX.index_copy_(0, slot_1, allowed_X[None])
    state.bad_words_SWL.index_copy_(0, slot_1, words_WL[None])
    return state, ()


# -- the model runs ---------------------------------------------------------------------------------------------------


class Forward:
    """Hidden states of some rows' next tokens.

    Inputs: int64 [3, B] with slots, first positions and numbers of tokens (padding rows name the scratch slot, position
    0 and 1 token), then for each KV group int32 [B, M] block tables. Of a flat decode these are [B, 1], and for each
    group int64 [3, F] follows with blocks, owners and the blocks' columns; see ``FlatBlocks``. Outputs: hidden states
    [B, E] of each row's last token, and [B * Q, E] of all.
    """

    def __init__(self, model: StaticModel, q_len: int) -> None:
        self._model = model
        self._q_len = q_len

    def __call__(self, state: DeviceState, inputs: tuple[Tensor, ...]) -> Outputs:
        model, q_len = self._model, self._q_len
        rows_3B, num_groups = inputs[0], len(model.attention)
        tables, lists = inputs[1 : 1 + num_groups], inputs[1 + num_groups :]
        slots_B, starts_B, q_lens_B = rows_3B[0], rows_3B[1], rows_3B[2]
        num_rows, device = rows_3B.shape[1], rows_3B.device
        offsets_Q = torch.arange(q_len, device=device)
        last = state.tokens_SL.shape[1] - 1
        positions_BQ = (starts_B[:, None] + offsets_Q).clamp(max=last)
        is_token_BQ = offsets_Q < q_lens_B[:, None]
        ids_T = state.tokens_SL[slots_B[:, None], positions_BQ].flatten()
        positions_T = positions_BQ.flatten()
        row_starts_B = torch.arange(num_rows + 1, device=device) * q_len
        views = []
        for group, (table_BM, scratch_block, kernels, spec) in enumerate(
            zip(tables, model.scratch_blocks, model.attention_kernels, model.attention, strict=True)
        ):
            columns_BQ = (positions_BQ // model.block_size).clamp(max=table_BM.shape[1] - 1)
            blocks_BQ = table_BM.long().gather(1, columns_BQ)
            # Tokens that pad a row are written where nobody reads.
            blocks_BQ = torch.where(is_token_BQ, blocks_BQ, scratch_block)
            slot_mapping_T = (blocks_BQ * model.block_size + positions_BQ % model.block_size).flatten()
            batch = AttentionBatch(
                q_lens=[q_len] * num_rows,
                kv_lens=[last + 1 if lists else table_BM.shape[1] * model.block_size] * num_rows,
                num_decodes=num_rows if q_len == 1 else 0,
                q_starts_B=row_starts_B,
                # A row's padding counts as its last tokens: causality hides them from the others.
                kv_lens_B=(starts_B + q_len).int(),
                block_tables_BM=table_BM,
                slot_mapping_T=slot_mapping_T,
                block_size=model.block_size,
                window=spec.window,
                flat=_flat_blocks(lists[group], model.block_size) if lists else None,
            )
            views.append(KVView(slot_mapping_T, kernels.prepare_attention(batch, spec)))
        rotaries = []
        for table_L2R, rope in zip(model.rotary_tables, model.ropes, strict=True):
            cos_sin_T2R = table_L2R.index_select(0, positions_T)
            half = rope.rotary_dim // 2
            rotaries.append((cos_sin_T2R[:, :half], cos_sin_T2R[:, half:]))
        rows = StepRows(slots_B, row_starts_B, starts_B, [q_len] * num_rows, num_rows if q_len == 1 else 0, slots=())
        step = Step(ids_T, positions_T, rotaries, rows, views, state.kv, state.states)
        hidden_TE = model.decoder.hidden(step)
        hidden_BE = hidden_TE.index_select(0, row_starts_B[:-1] + q_lens_B - 1)
        return state, (hidden_BE, hidden_TE)


def _flat_blocks(list_3F: Tensor, block_size: int) -> FlatBlocks:
    return FlatBlocks(list_3F[0].int(), list_3F[1], list_3F[2] * block_size)


class Sample:
    """One token for each row, into the tables and to the host.

    Inputs: hidden states [B, E], int64 [2, B] with slots and the slots whose tables take the token (the scratch slot
    for rows that do not sample), and int32 [B, words] token masks. Outputs: ids int64 [B], log-probabilities float32
    [B]; of the full tier also alternatives, int64 and float32 [B, N].
    """

    def __init__(self, model: StaticModel, tier: Tier) -> None:
        self._model = model
        self._tier = tier

    def __call__(self, state: DeviceState, inputs: tuple[Tensor, ...]) -> Outputs:
        kernels, slots = self._model.kernels, self._model.slots
        hidden_BE, slots_2B, masks_BW = inputs
        logits_BV = self._model.decoder.logits(hidden_BE)
        sampled_inputs = sample_inputs(state, slots_2B[0], self._tier)
        rows_B = torch.arange(len(hidden_BE), device=hidden_BE.device)
        if self._tier is Tier.FULL:
            sampled_inputs = slots.all_inputs(sampled_inputs, state, logits_BV.clone(), self._model.top_n)
        logits_BV = kernels.apply_bitmask(logits_BV, rows_B, masks_BW)
        sampled = kernels.sample(logits_BV, sampled_inputs)
        kernels.advance_tables(state.tokens_SL, state.lengths_S, slots_2B[1], sampled.ids_B)
        return state, tuple(tensor for tensor in sampled if tensor is not None)


class Score:
    """Log-probabilities of one row's next tokens, float32 [Q].

    Inputs: hidden states [B * Q, E] of all rows and int64 [3]: the row, its slot and its first position.
    """

    def __init__(self, model: StaticModel, q_len: int) -> None:
        self._model = model
        self._q_len = q_len

    def __call__(self, state: DeviceState, inputs: tuple[Tensor, ...]) -> Outputs:
        hidden_TE, place_3 = inputs
        offsets_Q = torch.arange(self._q_len, device=hidden_TE.device)
        hidden_QE = hidden_TE.index_select(0, place_3[0] * self._q_len + offsets_Q)
        positions_Q = (place_3[2] + 1 + offsets_Q).clamp(max=state.tokens_SL.shape[1] - 1)
        # A number as an index would be read on the host.
        ids_Q = state.tokens_SL[place_3[1:2], positions_Q]
        return state, (next_logprobs(hidden_QE, ids_Q, self._model.decoder),)
