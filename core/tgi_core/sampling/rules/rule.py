"""What a logits rule is: its parameters, its form on the device, and its meaning in plain Python."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from tgi_core.sampling.params import SamplingParams

if TYPE_CHECKING:
    from torch import Tensor

    from tgi_core.sampling.rules.rows import RuleRows

_LARGEST_VALUE = 1e30
"""Parameters are cut to this size, so that finite scores stay finite in float32 whatever a request asks for."""


class Stage(IntEnum):
    """When a rule runs; stages run in this order."""

    SCORES = 0
    """Before the token mask and the temperature, on rows that sample and on rows that take the best token."""
    DISTRIBUTION = 1
    """After temperature, top-k and top-p; has an effect only on rows that sample."""


class Parameter(NamedTuple):
    """A number that a rule keeps for each row: its name and the value that changes nothing.

    Where the name is a field of SamplingParams the value is that field's; others come from its ``extra``.
    """

    name: str
    neutral: float

    def value(self, params: SamplingParams) -> float:
        """The value for a request, as the device tables hold it."""
        value = getattr(params, self.name) if self.name in _FIELDS else params.extra.get(self.name, self.neutral)
        return min(max(float(value), -_LARGEST_VALUE), _LARGEST_VALUE)


class RowContext(NamedTuple):
    """One row for the plain form of a rule: its parameters, prompt and output so far, and the model's EOS ids."""

    params: SamplingParams
    token_ids: Sequence[int]
    prompt_len: int
    eos_token_ids: Sequence[int] = ()


class LogitsRule(ABC):
    """One rule. Holds no state of requests: what it needs to know of a row is in the device tables.

    Attributes:
        name: unique among all rules.
        parameters: the numbers that the rule keeps in the device tables; their names are unique among all rules.
        stage: when the rule runs. Within a stage the rules that ship run first, then those of plugins.
    """

    name: str
    parameters: tuple[Parameter, ...]
    stage: Stage = Stage.SCORES

    def is_active(self, params: SamplingParams) -> bool:
        """Whether the rule changes anything for a request; steps apply only what one of their rows needs."""
        return any(parameter.value(params) != parameter.neutral for parameter in self.parameters)

    @abstractmethod
    def apply(self, scores_BV: Tensor, rows: RuleRows) -> Tensor:
        """The new scores of all rows: float32 [B, V] -> float32 [B, V]; must not overwrite its input.

        Launches only: no value is read on the host and no shape depends on one, so that steps stay asynchronous. A row
        whose parameters are neutral keeps its scores bit for bit, and a score of -inf stays -inf.
        """

    @abstractmethod
    def reference(self, scores: Sequence[float], context: RowContext) -> list[float]:
        """What ``apply`` means for one row, as a plain loop: the oracle of the tests."""


_FIELDS = frozenset(SamplingParams.__struct_fields__)
