"""The rules that ship, in the order they run."""

from __future__ import annotations

from tgi_core.sampling.rules.allowed import AllowedTokens
from tgi_core.sampling.rules.bad_words import BadWords
from tgi_core.sampling.rules.cuts import MinP, TypicalP
from tgi_core.sampling.rules.penalties import OutputPenalty, RelativeFrequencyPenalty, RepetitionPenalty
from tgi_core.sampling.rules.rule import LogitsRule
from tgi_core.sampling.rules.tokens import LogitBias, MinTokens
from tgi_core.sampling.rules.watermark import Watermark

RULES: tuple[LogitsRule, ...] = (
    Watermark(),
    RepetitionPenalty(),
    RelativeFrequencyPenalty(),
    OutputPenalty(),
    LogitBias(),
    AllowedTokens(),
    BadWords(),
    MinTokens(),
    MinP(),
    TypicalP(),
)
