"""One step as data: what the scheduler asks of a shard and what it gets back.

Plans carry slots, never token ids of the output: those live in device tables, so the plan of step n+1 can be made and
launched before the tokens of step n are known. Versioned and append-only: new fields go last and have a default.
"""

from __future__ import annotations

import msgspec

from tgi_core.sampling.params import SamplingParams, Tier

PLAN_VERSION = 0


class NewSlot(msgspec.Struct, frozen=True, array_like=True):
    """A request that takes a slot in this step.

    Attributes:
        slot: row of the device tables.
        token_ids: the prompt; after a preemption also the output made so far.
        prompt_len: how many of them belong to the prompt.
        sampling: the request's sampling parameters.
        encoder_ids: the input of a model with an encoder, which is computed whole in this step, before the rows; empty
            for other models.
    """

    slot: int
    token_ids: list[int]
    prompt_len: int
    sampling: SamplingParams
    encoder_ids: list[int] = []


class AppendedBlocks(msgspec.Struct, frozen=True, array_like=True):
    """Write ``block_ids`` into the slot's block table of ``group``, from column ``start`` on."""

    group: int
    slot: int
    start: int
    block_ids: list[int]


class CopiedBlock(msgspec.Struct, frozen=True, array_like=True):
    """Copy one block of ``group`` in every layer of the group, before the step computes."""

    group: int
    source: int
    target: int


class StepPlan(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One step. The row columns have one entry a row; rows that decode (q_len 1 after the prompt) come first.

    Attributes:
        step: number of the step, from 1.
        new_slots: requests that enter the device tables before the step computes.
        appended_blocks: KV blocks given to slots before the step computes.
        copied_blocks: block copies done before the step computes.
        slots: the slot of each row.
        epochs: how often the slot has been reused; results carry it back.
        q_lens: tokens the row computes.
        kv_lens: tokens in the row's cache after the step, an upper bound where drafts may be refused.
        samples: whether the row ends in a new token (false for all but the last chunk of a prompt).
        num_decodes: how many leading rows are decodes.
        tier: the sampling work the step needs.
        late: the rows' sampling waits for LateInputs.
        prompt_logprobs: rows of prefill chunks whose prompt tokens' log-probabilities are wanted.
        freed_slots: slots whose request has ended or lost its place since the last plan; no row names one of them
            before it is among ``new_slots`` again. What is kept of them outside the tables may go.
    """

    step: int
    slots: list[int]
    epochs: list[int]
    q_lens: list[int]
    kv_lens: list[int]
    samples: list[bool]
    num_decodes: int
    tier: Tier = Tier.GREEDY
    new_slots: list[NewSlot] = []
    appended_blocks: list[AppendedBlocks] = []
    copied_blocks: list[CopiedBlock] = []
    late: bool = False
    version: int = PLAN_VERSION
    prompt_logprobs: list[int] = []
    freed_slots: list[int] = []


class LateInputs(msgspec.Struct, frozen=True, array_like=True):
    """What the host makes while the forward runs.

    Attributes:
        mask_rows: indexes, among the rows that sample, that a token mask constrains.
        masks: for each of them ceil(V / 32) little-endian 32-bit words, one after the other; bit t of a row set means
            that token t is allowed.
        skipped_rows: indexes, among the rows that sample, whose mask is not ready: they sit this sampling out, their
            tables stay as they are and the result does not name them.
    """

    mask_rows: list[int]
    masks: bytes
    skipped_rows: list[int] = []


class TopTokens(msgspec.Struct, frozen=True, array_like=True):
    """The most likely tokens beside a chosen one, best first, and their log-probabilities (-inf where cut off)."""

    token_ids: list[int]
    logprobs: list[float]


class PromptLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities of prompt tokens of one slot: of those at positions ``start``, ``start + 1``, ..."""

    slot: int
    epoch: int
    start: int
    logprobs: list[float]


class StepResult(msgspec.Struct, frozen=True, array_like=True):
    """The tokens of one collected step, one entry for each row that sampled, in row order.

    Attributes:
        step: number of the step.
        slots, epochs: whose token it is.
        token_ids: the new tokens.
        logprobs: natural log-probability of each, after all sampling rules or, with ``raw_logprobs``, before them; may
            be -inf or nan, never hidden.
        tops: empty when no row asked for alternatives; else one entry for each row that sampled, None for those that
            did not ask.
        prompt_logprobs: of the plan's rows that asked; the first token of a prompt has none. Never warped.
    """

    step: int
    slots: list[int]
    epochs: list[int]
    token_ids: list[int]
    logprobs: list[float]
    tops: list[TopTokens | None] = []
    prompt_logprobs: list[PromptLogprobs] = []
