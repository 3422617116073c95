"""Puts a model's defaults of sampling where a request names nothing."""

from __future__ import annotations

from typing import Any, TypeVar

from msgspec.structs import replace

from tgi_core.requests.parameters import GenerateParameters, OpenAIParameters
from tgi_core.sampling.defaults import SamplingDefaults

Parameters = TypeVar("Parameters", GenerateParameters, OpenAIParameters)

_WARPERS = ("temperature", "top_k", "top_p", "min_p", "typical_p")


def fill_generate(given: GenerateParameters | None, defaults: SamplingDefaults) -> GenerateParameters:
    """Parameters of TGI's generate routes, completed; a request that has none samples where the model does not say.

    One that says ``do_sample`` false gets nothing that samples.
    """
    if given is None:
        given = GenerateParameters(do_sample=True if defaults.do_sample is None else None)
    if given.do_sample is None and defaults.do_sample is not None and not _names_any(given):
        given = replace(given, do_sample=defaults.do_sample)
    return _fill(given, defaults, samples=given.do_sample is not False)


def fill_openai(given: OpenAIParameters, defaults: SamplingDefaults) -> OpenAIParameters:
    """Parameters of a chat or completion, completed; greedy is a temperature of 0."""
    if defaults.do_sample is False and not _names_any(given):
        given = replace(given, temperature=0.0)
    return _fill(given, defaults, samples=given.temperature != 0.0)


def _names_any(given: GenerateParameters | OpenAIParameters) -> bool:
    return any(getattr(given, name) is not None for name in _WARPERS)


def _fill(given: Parameters, defaults: SamplingDefaults, *, samples: bool) -> Parameters:
    wanted = ("repetition_penalty", *(_WARPERS if samples else ()))
    found: dict[str, Any] = {
        name: getattr(defaults, name)
        for name in wanted
        if getattr(given, name) is None and getattr(defaults, name) is not None
    }
    return replace(given, **found) if found else given
