"""The sampling parameters of one request, as the engine and the device see them."""

from __future__ import annotations

from enum import IntEnum

import msgspec

MAX_LOGIT_BIASES = 1024
"""Tokens that the ``logit_bias`` of one request may name: the width of a device table."""

MAX_BAD_WORDS = 128
MAX_BAD_WORD_TOKENS = 16
"""Sequences of tokens that one request may forbid, and tokens in each: the size of a device table."""


class Tier(IntEnum):
    """How much work the sampling of a step needs; known on the host, part of a graph's key."""

    GREEDY = 0
    SAMPLED = 1
    """Temperature, top-k and top-p."""
    FULL = 2
    """Everything: rules that look at the tokens so far, the less common cuts, alternatives, raw log-probabilities."""


class SamplingParams(msgspec.Struct, frozen=True, array_like=True):
    """Validated parameters; every default is neutral.

    Attributes:
        do_sample: draw from the distribution; otherwise take the best token.
        temperature: divides the logits, > 0.
        top_k: keep the k best tokens; 0 keeps all.
        top_p: keep the smallest set of best tokens with this probability mass; 1 keeps all.
        repetition_penalty: > 0; 1 changes nothing. Acts once on each distinct token of prompt and output.
        seed: key of the counter-based noise, an unsigned 64-bit number.
        choice: index among several choices of one request, which draw different noise from one seed.
        typical_p: locally typical sampling with this mass; 1 keeps all.
        min_p: drop tokens less likely than this share of the best one's probability; 0 keeps all.
        frequency_penalty, presence_penalty: OpenAI's: subtracted for each occurrence, and once, of an output token.
        relative_frequency_penalty: TGI's: subtracted times the token's share of prompt and output.
        logit_bias: added to the logits, by token id; at most ``MAX_LOGIT_BIASES``.
        allowed_token_ids: the only tokens that may be chosen, at most ``MAX_LOGIT_BIASES``; empty allows all.
        bad_words: sequences of tokens that the output must not have, at most ``MAX_BAD_WORDS`` of at most
            ``MAX_BAD_WORD_TOKENS``.
        min_tokens: no end of sequence before the output has so many tokens.
        watermark_gamma, watermark_delta: share of green tokens and what is added to their logits; a delta of 0 is off.
        top_n: how many of the most likely tokens to report beside each chosen one.
        raw_logprobs: report the model's log-probabilities instead of those after the rules.
        extra: parameters of plugins' rules, by name.
    """

    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int = 0
    choice: int = 0
    typical_p: float = 1.0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    relative_frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    min_tokens: int = 0
    watermark_gamma: float = 0.5
    watermark_delta: float = 0.0
    top_n: int = 0
    raw_logprobs: bool = False
    extra: dict[str, float] = {}
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()

    @property
    def changes_scores(self) -> bool:
        """Whether a rule beyond temperature, top-k and top-p has anything to do."""
        return (
            self.repetition_penalty != 1.0
            or self.frequency_penalty != 0.0
            or self.presence_penalty != 0.0
            or self.relative_frequency_penalty != 0.0
            or bool(self.logit_bias)
            or bool(self.allowed_token_ids)
            or bool(self.bad_words)
            or self.min_tokens > 0
            or self.watermark_delta != 0.0
            or bool(self.extra)
            or (self.do_sample and (self.typical_p < 1.0 or self.min_p > 0.0))
        )

    @property
    def tier(self) -> Tier:
        """The cheapest tier that can sample this request."""
        if self.changes_scores or self.top_n > 0 or (self.raw_logprobs and self.do_sample):
            return Tier.FULL
        return Tier.SAMPLED if self.do_sample else Tier.GREEDY
