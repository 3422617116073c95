"""Log-probabilities of prompt tokens, computed from the hidden states of a step's chunks where a request asks."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tgi_core.contract import DeviceState, PromptLogprobs, StepPlan
from tgi_core.models.model import LoadedModel
from tgi_core.shards.slots import SlotTable
from tgi_core.transfer import download

PIECE_ROWS = 256
"""Tokens whose logits exist at the same time: a whole prompt's would take gigabytes."""


class RowChunk(NamedTuple):
    """One row's share: ``num_tokens`` of its prompt, from position ``start`` on."""

    slot: int
    epoch: int
    start: int
    num_tokens: int


class PromptScores(NamedTuple):
    """Log-probabilities on their way to the host; readable once the step's event has been waited for."""

    chunks: list[RowChunk]
    logprobs_X: Tensor

    def to_results(self) -> list[PromptLogprobs]:
        """As the step's result holds them."""
        results, begin = [], 0
        values = self.logprobs_X.tolist()
        for slot, epoch, start, num_tokens in self.chunks:
            results.append(PromptLogprobs(slot, epoch, start, values[begin : begin + num_tokens]))
            begin += num_tokens
        return results


def score_prompts(
    plan: StepPlan, hidden_TE: Tensor, state: DeviceState, slots: SlotTable, decoder: LoadedModel
) -> PromptScores | None:
    """Score the chunks of the rows in ``plan.prompt_logprobs``; None when there are none.

    The hidden state at a position says how likely the next token was; the last position of a prompt has none.

    Args:
        plan: the step.
        hidden_TE: hidden states of all its tokens.
        state, slots: the tables, for tokens and prompt lengths.
        decoder: has the head.
    """
    if not plan.prompt_logprobs:
        return None
    chunks, pieces = [], []
    for row in plan.prompt_logprobs:
        slot, q_len = plan.slots[row], plan.q_lens[row]
        begin = sum(plan.q_lens[:row])
        start = plan.kv_lens[row] - q_len + 1
        num_tokens = max(0, min(q_len, slots[slot].prompt_len - start))
        chunks.append(RowChunk(slot, plan.epochs[row], start, num_tokens))
        for done in range(0, num_tokens, PIECE_ROWS):
            size = min(PIECE_ROWS, num_tokens - done)
            hidden_RE = hidden_TE[begin + done : begin + done + size]
            next_ids_R = state.tokens_SL[slot, start + done : start + done + size]
            pieces.append(next_logprobs(hidden_RE, next_ids_R, decoder))
    return PromptScores(chunks, download(torch.cat(pieces)) if pieces else torch.empty(0))


def next_logprobs(hidden_RE: Tensor, next_ids_R: Tensor, decoder: LoadedModel) -> Tensor:
    """The model's log-probability of the token after each hidden state: float32 [R]."""
    return token_logprobs(decoder.logits(hidden_RE), next_ids_R)


def token_logprobs(logits_RV: Tensor, ids_R: Tensor) -> Tensor:
    """The log-probability of a token under each row of logits: float32 [R]."""
    logprobs_RV = logits_RV.log_softmax(dim=-1, dtype=torch.float32)
    return logprobs_RV.gather(1, ids_R.long()[:, None]).squeeze(1)
