"""What a model's makers advise for sampling: ``generation_config.json``."""

from __future__ import annotations

import msgspec


class SamplingDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """Values for parameters that a request does not name; None keeps the API's own default.

    Attributes:
        do_sample: False is greedy where a request names nothing that samples.
        temperature, top_k, top_p, min_p, typical_p, repetition_penalty: as a request has them.
    """

    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
