"""What the host knows of the slots' sampling: a step does only what one of its rows needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tgi_core.contract import DeviceState, NewSlot, SampleInputs, TopTokens
from tgi_core.sampling.params import MAX_BAD_WORDS, MAX_LOGIT_BIASES, Tier
from tgi_core.sampling.rules import RuleSet, Stage
from tgi_core.sampling.rules.rows import RuleRows
from tgi_core.transfer import upload


class SlotSampling(NamedTuple):
    """One slot.

    Attributes:
        prompt_len: tokens of its prompt.
        active_rules: bits as ``RuleSet.active`` gives them.
        is_whole: its rows are among ``SampleInputs.whole_rows_R``.
        cuts_top: top-k or top-p cuts its rows' distribution.
        biases: its logit bias, (token, bias) for tokens that the vocabulary has.
        allowed, bad_words: the only tokens, and the sequences of tokens to avoid, that the vocabulary has.
        top_n, raw_logprobs: as in SamplingParams.
    """

    prompt_len: int = 0
    active_rules: int = 0
    is_whole: bool = False
    cuts_top: bool = False
    biases: tuple[tuple[int, float], ...] = ()
    allowed: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    top_n: int = 0
    raw_logprobs: bool = False

    def trim(self, token_ids: Sequence[int], logprobs: Sequence[float]) -> TopTokens:
        """The alternatives to report, of twice as many, best first.

        As in TGI these are all tokens as likely as the last one asked for, so that ties may give more, up to twice as
        many; but no ties among tokens that were cut off, and none where the log-probabilities are the model's own.
        """
        count = min(self.top_n, len(token_ids))
        last = logprobs[count - 1]
        if not self.raw_logprobs and not math.isinf(last):
            while count < min(2 * self.top_n, len(token_ids)) and logprobs[count] == last:
                count += 1
        return TopTokens(list(token_ids[:count]), list(logprobs[:count]))


class _Widths(NamedTuple):
    """How many columns of the sparse tables are read."""

    biases: int
    allowed: int
    bad_words: int


_EVERYTHING = _Widths(MAX_LOGIT_BIASES, MAX_LOGIT_BIASES, MAX_BAD_WORDS)


class SlotTable:
    """All slots of a shard.

    Args:
        rules: the shard's rules.
        max_slots: how many slots there are.
        vocab_size: width of the logits; what a request says about tokens beyond it is dropped.
        eos_ids_E: int64 on the device, the model's end-of-sequence ids within the vocabulary.
    """

    def __init__(self, rules: RuleSet, max_slots: int, vocab_size: int, eos_ids_E: Tensor) -> None:
        self.rules = rules
        self._vocab_size = vocab_size
        self._eos_ids_E = eos_ids_E
        self._slots = [SlotSampling()] * max_slots

    def __getitem__(self, slot: int) -> SlotSampling:
        return self._slots[slot]

    def enter(self, new: NewSlot) -> None:
        """A request takes a slot."""
        params = new.sampling
        active = self.rules.active(params)
        is_cut = bool(self.rules.choose(active, Stage.DISTRIBUTION))
        self._slots[new.slot] = SlotSampling(
            prompt_len=new.prompt_len,
            active_rules=active,
            is_whole=is_cut or params.top_n > 0 or params.raw_logprobs,
            cuts_top=params.do_sample and (params.top_k > 0 or params.top_p < 1.0),
            biases=tuple(pair for pair in params.logit_bias.items() if 0 <= pair[0] < self._vocab_size),
            allowed=tuple(token for token in params.allowed_token_ids if 0 <= token < self._vocab_size),
            bad_words=tuple(
                word for word in params.bad_words if word and min(word) >= 0 and max(word) < self._vocab_size
            ),
            top_n=params.top_n,
            raw_logprobs=params.raw_logprobs,
        )

    def report_raw(self, slots: Sequence[int]) -> bool:
        """Whether one of the slots reports the model's own log-probabilities."""
        return any(self._slots[slot].raw_logprobs for slot in slots)

    def whole_rows(self, slots: Sequence[int]) -> list[int]:
        """``SampleInputs.whole_rows_R`` of the full tier, as indexes into ``slots``."""
        return [row for row, slot in enumerate(slots) if self._slots[slot].is_whole]

    def all_inputs(self, inputs: SampleInputs, state: DeviceState, raw_logits_BV: Tensor, top_n: int) -> SampleInputs:
        """As ``full_inputs``, with every rule and all that any row could ask for: its shapes depend on no row.

        Args:
            inputs: of the sampled tier.
            state: the device tables.
            raw_logits_BV: the logits before token masks.
            top_n: the most alternatives that a row may ask for.
        """
        every = -1
        return inputs._replace(
            tier=Tier.FULL,
            rules=self.rules.choose(every, Stage.SCORES),
            cuts=self.rules.choose(every, Stage.DISTRIBUTION),
            rule_rows=self._rule_rows(inputs.slots_B, state, state.tokens_SL.shape[1], _EVERYTHING),
            whole_rows_R=torch.arange(len(inputs.slots_B), device=inputs.slots_B.device),
            top_n=top_n,
            raw_logprobs_B=state.raw_logprobs_S.index_select(0, inputs.slots_B),
            raw_logits_BV=raw_logits_BV,
        )

    def full_inputs(
        self,
        inputs: SampleInputs,
        state: DeviceState,
        slots: Sequence[int],
        max_length: int,
        raw_logits_BV: Tensor,
    ) -> SampleInputs:
        """Add to a step's inputs what only the full tier needs.

        Args:
            inputs: of the sampled tier, for the same rows.
            state: the device tables.
            slots: the rows' slots, as ``inputs.slots_B`` holds them on the device.
            max_length: upper bound of the rows' lengths.
            raw_logits_BV: the logits before token masks.
        """
        slots_B = inputs.slots_B
        rows = [self._slots[slot] for slot in slots]
        active = 0
        for row in rows:
            active |= row.active_rules
        widths = _Widths(
            biases=max(len(row.biases) for row in rows),
            allowed=max(len(row.allowed) for row in rows),
            bad_words=max(len(row.bad_words) for row in rows),
        )
        whole = self.whole_rows(slots)
        report_raw = self.report_raw(slots)
        return inputs._replace(
            tier=Tier.FULL,
            rules=self.rules.choose(active, Stage.SCORES),
            cuts=self.rules.choose(active, Stage.DISTRIBUTION),
            rule_rows=self._rule_rows(slots_B, state, max_length, widths),
            whole_rows_R=upload(torch.tensor(whole), slots_B.device) if whole else None,
            cuts_top=any(row.cuts_top for row in rows),
            top_n=max(row.top_n for row in rows),
            raw_logprobs_B=state.raw_logprobs_S.index_select(0, slots_B) if report_raw else None,
            raw_logits_BV=raw_logits_BV if report_raw else None,
        )

    def _rule_rows(self, slots_B: Tensor, state: DeviceState, max_length: int, widths: _Widths) -> RuleRows:
        """What rules read of some slots, of the sparse tables only so many columns."""
        return RuleRows(
            slots_B=slots_B,
            lengths_B=state.lengths_S.index_select(0, slots_B),
            prompt_lens_B=state.prompt_lens_S.index_select(0, slots_B),
            tokens_SL=state.tokens_SL,
            max_length=max_length,
            values_BP=state.rule_values_SP.index_select(0, slots_B),
            columns=self.rules.columns,
            bias_ids_BX=state.bias_ids_SX[:, : widths.biases].index_select(0, slots_B).long(),
            bias_values_BX=state.bias_values_SX[:, : widths.biases].index_select(0, slots_B),
            allowed_ids_BX=state.allowed_ids_SX[:, : widths.allowed].index_select(0, slots_B).long(),
            bad_words_BWL=state.bad_words_SWL[:, : widths.bad_words].index_select(0, slots_B).long(),
            eos_ids_E=self._eos_ids_E,
        )
