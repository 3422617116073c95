"""``/metrics``: TGI's names, labels and buckets."""

from __future__ import annotations

import re
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.api import Api, make_state, open_api
from tgi_api.exposition import Counter, Gauge, Histogram
from tgi_core.engine.frames import EngineStats
from tgi_core.requests import TextTokenizer

DURATIONS = [
    "tgi_request_duration",
    "tgi_request_validation_duration",
    "tgi_request_queue_duration",
    "tgi_request_inference_duration",
    "tgi_request_mean_time_per_token_duration",
    "tgi_batch_inference_duration",
    "tgi_batch_forward_duration",
]
LENGTHS = {"tgi_request_input_length": 100, "tgi_request_generated_tokens": 128, "tgi_request_max_new_tokens": 128}


def scrape(api: Api) -> dict[str, Any]:
    """The families of /metrics by name, as a Prometheus server reads them."""
    return {family.name: family for family in text_string_to_metric_families(api.http.get("/metrics").text)}


def bounds(family: Any) -> list[float]:
    """The finite bucket bounds of the first child."""
    samples = [sample for sample in family.samples if sample.name.endswith("_bucket")]
    first = {key: value for key, value in samples[0].labels.items() if key != "le"}
    return [float(sample.labels["le"]) for sample in samples if first.items() <= sample.labels.items()][:-1]


def test_content_type(api: Api) -> None:
    assert api.http.get("/metrics").headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


def test_all_of_tgis_core_metrics_from_the_start(api: Api) -> None:
    families = scrape(api)
    counters = ["tgi_request_count", "tgi_request_success", "tgi_request_failure", "tgi_batch_inference_count"]
    gauges = ["tgi_queue_size", "tgi_batch_current_size", "tgi_batch_current_max_tokens", "tgi_batch_max_total_tokens"]
    for names, kind in ((counters, "counter"), (gauges, "gauge"), ([*DURATIONS, *LENGTHS], "histogram")):
        for name in names:
            assert families[name].type == kind, name


def test_counters_have_no_suffix(api: Api) -> None:
    text = api.http.get("/metrics").text
    assert re.search(r"^tgi_request_count 0$", text, re.MULTILINE)
    assert "_total " not in text.replace("tgi_batch_max_total_tokens ", "")


@pytest.mark.parametrize("name", DURATIONS)
def test_duration_buckets(api: Api, name: str) -> None:
    found = bounds(scrape(api)[name])
    assert len(found) == 35
    assert found[0] == pytest.approx(0.00015)
    assert found[-1] == pytest.approx(0.0001 * 1.5**35)


@pytest.mark.parametrize(("name", "limit"), LENGTHS.items())
def test_length_buckets(api: Api, name: str, limit: int) -> None:
    found = bounds(scrape(api)[name])
    assert len(found) == 100
    assert found[0] == pytest.approx(limit / 100)
    assert found[-1] == limit


def test_a_success_is_counted_once(api: Api) -> None:
    api.post("/generate", {"inputs": "The quick", "parameters": {"max_new_tokens": 9}})
    assert api.metric("tgi_request_count") == 1
    assert api.metric("tgi_request_success") == 1
    assert api.metric("tgi_request_generated_tokens_sum") == 3
    assert api.metric("tgi_request_max_new_tokens_sum") == 9
    assert api.metric("tgi_request_input_length_sum") == len(api.engine.submitted[0].prompt)
    assert api.metric("tgi_request_queue_duration_sum") == 0.25
    assert api.metric("tgi_prefix_cache_hit_tokens") == 7
    for name in DURATIONS[:5]:
        assert api.metric(f"{name}_count") == 1
    assert api.metric("tgi_request_time_to_first_token_duration_count") == 1


@pytest.mark.parametrize("stream", [False, True])
def test_each_prompt_counts(api: Api, stream: bool) -> None:
    api.post("/v1/completions", {"prompt": ["a", "b"], "stream": stream})
    assert api.metric("tgi_request_count") == 2
    assert api.metric("tgi_request_success") == 2


@pytest.mark.parametrize("stream", [False, True])
def test_each_choice_counts(api: Api, stream: bool) -> None:
    api.post("/v1/completions", {"prompt": ["a", "b"], "n": 2, "stream": stream})
    assert api.metric("tgi_request_count") == 4
    assert api.metric("tgi_request_success") == 4


@pytest.mark.parametrize("body", [{"inputs": ""}, {}, {"inputs": "x", "parameters": {"temperature": -1}}])
def test_refused_requests_count_as_validation_failures(api: Api, body: Any) -> None:
    api.post("/generate", body)
    assert api.metric("tgi_request_count") == 1
    assert api.metric('tgi_request_failure{err="validation"}') == 1
    assert api.metric("tgi_request_success") == 0


def test_a_body_over_the_limit_counts_as_a_validation_failure(tokenizer: TextTokenizer) -> None:
    with open_api(make_state(tokenizer, payload_limit=10)) as api:
        assert api.post("/generate", {"inputs": "x"}).status_code == 413
        assert api.metric('tgi_request_failure{err="validation"}') == 1


def test_gauges_are_the_engines(api: Api) -> None:
    assert api.metric("tgi_queue_size") == 3
    assert api.metric("tgi_batch_current_size") == 2
    assert api.metric("tgi_batch_current_max_tokens") == 40
    assert api.metric("tgi_batch_max_total_tokens") == 4096
    assert api.metric("tgi_kv_blocks_used") == 5
    assert api.metric("tgi_kv_blocks") == 256


def test_steps_by_method(api: Api) -> None:
    on_step = api.engine.on_step
    assert on_step is not None
    on_step(EngineStats(prefill_tokens=5, decode_tokens=1, step_ms=20.0))
    on_step(EngineStats(decode_tokens=2, step_ms=10.0))
    on_step(EngineStats(decode_tokens=2, step_ms=10.0))
    on_step(EngineStats(queue_size=1))  # News of the gauges, not a step.
    assert api.metric('tgi_batch_inference_count{method="prefill"}') == 1
    assert api.metric('tgi_batch_inference_count{method="decode"}') == 2
    assert api.metric('tgi_batch_inference_duration_sum{method="decode"}') == pytest.approx(0.02)
    assert api.metric('tgi_batch_inference_duration_count{method="prefill"}') == 1


def test_exposition_of_each_kind() -> None:
    counter = Counter("c", "A counter", "err", ("x", "y"))
    counter.inc(value="y")
    counter.inc(2, value="y")
    assert list(counter.lines()) == ["# HELP c A counter", "# TYPE c counter", 'c{err="x"} 0', 'c{err="y"} 3']
    assert list(Gauge("g", "A gauge", lambda: 0.5).lines()) == ["# HELP g A gauge", "# TYPE g gauge", "g 0.5"]
    histogram = Histogram("h", "A histogram", (1.0, 2.5))
    for amount in (0.5, 1.0, 2.0, 9.0):
        histogram.observe(amount)
    assert list(histogram.lines()) == [
        "# HELP h A histogram",
        "# TYPE h histogram",
        'h_bucket{le="1"} 2',
        'h_bucket{le="2.5"} 3',
        'h_bucket{le="+Inf"} 4',
        "h_sum 12.5",
        "h_count 4",
    ]
