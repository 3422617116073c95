"""A model's defaults of sampling, where a request names nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tgi_core.requests import RequestLimits, validate_generate, validate_openai
from tgi_core.requests.parameters import GenerateParameters, OpenAIParameters
from tgi_core.sampling.defaults import SamplingDefaults
from tgi_core.sampling.params import SamplingParams

ADVISED = SamplingDefaults(do_sample=True, temperature=0.6, top_k=20, top_p=0.95, min_p=0.1, repetition_penalty=1.1)
GREEDY = SamplingDefaults(do_sample=False, repetition_penalty=1.2)


def tgi(defaults: SamplingDefaults, parameters: dict[str, Any] | None) -> SamplingParams:
    given = None if parameters is None else msgspec.convert(parameters, GenerateParameters)
    return validate_generate("x", given, limits(defaults), stream=False).sampling


def openai(defaults: SamplingDefaults, parameters: dict[str, Any] | None) -> SamplingParams:
    return validate_openai(msgspec.convert(parameters or {}, OpenAIParameters), limits(defaults)).sampling


def limits(defaults: SamplingDefaults) -> RequestLimits:
    return RequestLimits(max_input_tokens=10, max_total_tokens=20, vocab_size=100, defaults=defaults)


@pytest.mark.parametrize("api", [tgi, openai])
class TestBothApis:
    def test_what_is_not_named_is_the_models(self, api: Any) -> None:
        for parameters in (None, {}):
            found = api(ADVISED, parameters)
            assert found.do_sample
            assert (found.temperature, found.top_k, found.top_p, found.min_p) == (0.6, 20, 0.95, 0.1)
            assert found.repetition_penalty == 1.1

    def test_what_is_named_is_the_requests(self, api: Any) -> None:
        found = api(ADVISED, {"temperature": 0.9, "top_k": 3, "repetition_penalty": 1.0})
        assert (found.temperature, found.top_k, found.top_p) == (0.9, 3, 0.95)
        assert found.repetition_penalty == 1.0

    def test_a_greedy_model_is_greedy_until_a_request_names_something_that_samples(self, api: Any) -> None:
        assert not api(GREEDY, {}).do_sample
        assert not api(GREEDY, None).do_sample
        assert api(GREEDY, {"top_p": 0.5}).do_sample
        assert api(GREEDY, {}).repetition_penalty == 1.2

    def test_without_defaults_nothing_changes(self, api: Any) -> None:
        plain = api(SamplingDefaults(), {"temperature": 0.5})
        assert (plain.temperature, plain.top_k, plain.top_p, plain.repetition_penalty) == (0.5, 0, 1.0, 1.0)


def test_a_request_that_says_greedy_stays_greedy() -> None:
    assert not tgi(ADVISED, {"do_sample": False}).do_sample
    assert not openai(ADVISED, {"temperature": 0}).do_sample
    assert tgi(ADVISED, {"do_sample": False}).repetition_penalty == 1.1


def test_do_sample_alone_makes_tgis_requests_sample() -> None:
    assert tgi(SamplingDefaults(do_sample=True), {}).do_sample
    assert not tgi(SamplingDefaults(), {}).do_sample
    assert tgi(SamplingDefaults(), None).do_sample
