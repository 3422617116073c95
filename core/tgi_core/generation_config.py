"""What ``generation_config.json`` says of sampling."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tgi_core.errors import ExitCode, StartupError
from tgi_core.sampling.defaults import SamplingDefaults

_RANGES: Mapping[str, tuple[str, Callable[[float], bool]]] = {
    "temperature": ("not negative", lambda value: value >= 0),
    "top_p": ("above 0 and at most 1", lambda value: 0 < value <= 1),
    "min_p": ("from 0 to 1", lambda value: 0 <= value <= 1),
    "typical_p": ("above 0 and at most 1", lambda value: 0 < value <= 1),
    "repetition_penalty": ("above 0", lambda value: value > 0),
}


def read_sampling_defaults(file: Path, values: Mapping[str, Any]) -> SamplingDefaults:
    """The defaults in ``values``, the content of ``file``; a temperature of 0 is another word for greedy.

    Raises:
        StartupError: a value is out of its range.
    """
    found: dict[str, float | None] = {}
    for name, (allowed, fits) in _RANGES.items():
        value = values.get(name)
        if value is not None and not (_is_number(value) and fits(value)):
            raise _refuse(file, name, value, f"a number {allowed}")
        found[name] = None if value is None else float(value)
    top_k = values.get("top_k")
    if top_k is not None and (not isinstance(top_k, int) or isinstance(top_k, bool) or not -1 <= top_k < 2**31):
        raise _refuse(file, "top_k", top_k, "a number of tokens")
    do_sample = values.get("do_sample")
    if do_sample is not None and not isinstance(do_sample, bool):
        raise _refuse(file, "do_sample", do_sample, "true or false")
    if found["temperature"] == 0:
        found["temperature"] = None
        do_sample = False
    return SamplingDefaults(do_sample=do_sample, top_k=top_k, **found)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _refuse(file: Path, name: str, value: object, expected: str) -> StartupError:
    return StartupError(
        f"{file} has the `{name}` {value!r}.",
        f"Make it {expected}, or start without --generation-config auto.",
        ExitCode.MODEL,
    )
