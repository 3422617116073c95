"""Fields of bodies that both APIs have.

Bounds stand in the schema only: the checks themselves are the core's, which gives TGI's messages in TGI's order.
An explicit null means "not given" for every optional field.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

UINT64_MAX = 2**64 - 1


def bounds(description: str, **keywords: Any) -> Meta:
    """A description with JSON Schema bounds that are documented here and enforced by the core."""
    return Meta(description=description, extra_json_schema=keywords)


TopK = Annotated[int | None, bounds("Keep the k most likely tokens; 0 and -1 are off", minimum=-1)]
TopP = Annotated[
    float | None,
    bounds("Keep the most likely tokens with this probability mass; 1 is off", exclusiveMinimum=0, maximum=1),
]
TypicalP = Annotated[
    float | None, bounds("Locally typical sampling with this mass; 1 is off", exclusiveMinimum=0, maximum=1)
]
MinP = Annotated[
    float | None, bounds("Drop tokens less likely than this share of the best one's; 0 is off", minimum=0, maximum=1)
]
RepetitionPenalty = Annotated[
    float | None, bounds("Makes tokens of prompt and output less likely; 1 is off", exclusiveMinimum=0)
]
LogitBias = Annotated[
    dict[str, float] | list[float] | None,
    bounds("Added to the logits, by token id, from -100 to 100; of lists only empty ones", examples=[{"50256": -100}]),
]
LogitsRules = Annotated[dict[str, float] | None, Meta(description="Parameters of plugins' sampling rules, by name")]
IgnoreEos = Annotated[bool | None, Meta(description="The end-of-sequence token does not end the text")]
