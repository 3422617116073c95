"""All rules of a server in the order they run, and the columns of their parameters in the device tables."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tgi_core.sampling.params import MAX_BAD_WORD_TOKENS, MAX_BAD_WORDS, MAX_LOGIT_BIASES, SamplingParams
from tgi_core.sampling.rules.rule import LogitsRule, Stage


class RuleSet:
    """The rules of one shard.

    Args:
        rules: those that ship first, then those of plugins; names of rules and parameters are unique.

    Attributes:
        columns: the column of each parameter in a table of all of them.
        neutral: the values that change nothing, by column.
    """

    def __init__(self, rules: Sequence[LogitsRule]) -> None:
        self._rules = sorted(rules, key=lambda rule: rule.stage)
        self._parameters = [parameter for rule in self._rules for parameter in rule.parameters]
        self.columns = {parameter.name: column for column, parameter in enumerate(self._parameters)}
        self.neutral = [parameter.neutral for parameter in self._parameters]

    @property
    def extra_parameters(self) -> tuple[str, ...]:
        """Names that ``SamplingParams.extra`` may hold: parameters of rules that are not fields of SamplingParams."""
        return tuple(name for name in self.columns if name not in SamplingParams.__struct_fields__)

    def demand_all(self, *, whole: bool = True) -> SamplingParams:
        """A request for which every rule is active, to measure what that takes.

        With ``whole`` it also asks for what needs the whole distribution.
        """
        params = SamplingParams(
            do_sample=True,
            top_k=1,
            top_p=0.5,
            repetition_penalty=2.0,
            frequency_penalty=1.0,
            relative_frequency_penalty=1.0,
            logit_bias=dict.fromkeys(range(MAX_LOGIT_BIASES), 1.0),
            allowed_token_ids=tuple(range(MAX_LOGIT_BIASES)),
            bad_words=((0,) * MAX_BAD_WORD_TOKENS,) * MAX_BAD_WORDS,
            min_tokens=1,
            watermark_delta=1.0,
            extra={name: self.neutral[self.columns[name]] + 1.0 for name in self.extra_parameters},
        )
        return replace(params, typical_p=0.5, min_p=0.5, top_n=20, raw_logprobs=True) if whole else params

    def values(self, params: SamplingParams) -> list[float]:
        """The parameters of a request, by column."""
        return [parameter.value(params) for parameter in self._parameters]

    def active(self, params: SamplingParams) -> int:
        """The rules that change something for a request, as a set of bits for ``choose``."""
        return sum(1 << index for index, rule in enumerate(self._rules) if rule.is_active(params))

    def choose(self, active: int, stage: Stage) -> tuple[LogitsRule, ...]:
        """The rules of a stage that any of the bits names, in the order they run."""
        return tuple(rule for index, rule in enumerate(self._rules) if rule.stage is stage and active >> index & 1)
