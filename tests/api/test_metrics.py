"""``/metrics``: TGI's names, labels and buckets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from tests.support.api import INFO, Api, make_state, open_api
from tgi_api.exposition import Counter, Gauge, Histogram, ReadCounter, Summary
from tgi_core.engine.frames import EngineStats
from tgi_core.errors import RequestError
from tgi_core.requests import TextTokenizer

PARTS = ("duration", "validation_duration", "queue_duration", "inference_duration", "mean_time_per_token_duration")


class Expected(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A metric of TGI: ``values`` are those of its only label, ``buckets`` names the bounds of a histogram."""

    name: str
    type: str
    label: str = ""
    values: tuple[str, ...] = ()
    buckets: str = ""


# Written from TGI's own list.
TGI_METRICS = msgspec.json.decode((Path(__file__).parent / "tgi_metrics.json").read_bytes(), type=list[Expected])

OWN_VALUES = {"tgi_request_failure": {"tool", "cancelled"}}
"""Label values that TGI does not have."""

BOUNDS = {
    "durations": [0.0001 * 1.5**k for k in range(1, 36)],
    "input tokens": [k * INFO.max_input_tokens / 100 for k in range(1, 101)],
    "total tokens": [k * INFO.max_total_tokens / 100 for k in range(1, 101)],
    "1 to 1024": list(range(1, 1025)),
}


def scrape(api: Api) -> dict[str, Any]:
    """The families of /metrics by name, as a Prometheus server reads them."""
    return {family.name: family for family in text_string_to_metric_families(api.http.get("/metrics").text)}


def series(family: Any, suffix: str, **labels: str) -> dict[str, float]:
    """Values of the samples with ``suffix`` and ``labels``, by ``le``."""
    return {
        sample.labels.get("le", ""): sample.value
        for sample in family.samples
        if sample.name == family.name + suffix and labels.items() <= sample.labels.items()
    }


def test_content_type(api: Api) -> None:
    assert api.http.get("/metrics").headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


@pytest.mark.parametrize("expected", TGI_METRICS, ids=lambda expected: expected.name)
def test_every_metric_of_tgi_from_the_start(api: Api, expected: Expected) -> None:
    """With all its labels, so that neither a rate nor a panel misses a series."""
    family = scrape(api)[expected.name]
    assert family.type == expected.type
    assert family.documentation
    found = {sample.labels.get(expected.label) for sample in family.samples}
    assert found >= set(expected.values)
    assert found - set(expected.values) == (OWN_VALUES.get(expected.name, set()) if expected.label else {None})
    assert {label for sample in family.samples for label in sample.labels} <= {expected.label, "le"}
    # Looked up in the text: the parser gives counters the suffix that TGI's do not have.
    text = api.http.get("/metrics").text
    suffixes = set(re.findall(rf"^{expected.name}(_total|_bucket|_sum|_count|)[ {{]", text, re.MULTILINE))
    assert suffixes == {"summary": {"_sum", "_count"}, "histogram": {"_bucket", "_sum", "_count"}}.get(
        expected.type, {""}
    )
    if expected.buckets:
        for value in expected.values or ("",):
            labels = {expected.label: value} if value else {}
            bounds = [float(le) for le in series(family, "_bucket", **labels)]
            assert bounds[:-1] == pytest.approx(BOUNDS[expected.buckets])
            assert bounds[-1] == float("inf")


def test_counters_have_no_suffix(api: Api) -> None:
    text = api.http.get("/metrics").text
    assert re.search(r"^tgi_request_count 0$", text, re.MULTILINE)
    assert set(re.findall(r"^\w+_total\b", text, re.MULTILINE)) == set()


def test_a_quantile_as_a_dashboard_computes_it(api: Api) -> None:
    """``histogram_quantile`` needs cumulative buckets whose last is the count."""
    for amount in (0.01, 0.02, 0.04, 0.08):
        api.state.metrics.queue_duration.observe(amount)
    family = scrape(api)["tgi_request_queue_duration"]
    buckets = series(family, "_bucket")
    counts = list(buckets.values())
    assert counts == sorted(counts)
    assert counts[-1] == series(family, "_count")[""] == 4
    median = next(float(le) for le, count in buckets.items() if count >= 2)
    assert 0.02 <= median <= 0.02 * 1.5
    assert series(family, "_sum")[""] == pytest.approx(0.15)


def test_a_success_is_counted_once(api: Api) -> None:
    api.post("/generate", {"inputs": "The quick", "parameters": {"max_new_tokens": 9}})
    assert api.metric("tgi_request_count") == 1
    assert api.metric("tgi_request_success") == 1
    assert api.metric("tgi_request_generated_tokens_sum") == 3
    assert api.metric("tgi_request_max_new_tokens_sum") == 9
    assert api.metric("tgi_request_input_length_sum") == len(api.engine.submitted[0].prompt)
    assert api.metric("tgi_request_queue_duration_sum") == 0.25
    assert api.metric("tgi_prefix_cache_hit_tokens") == 7
    for part in PARTS:
        assert api.metric(f"tgi_request_{part}_count") == 1
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


def test_every_error_has_its_series_from_the_start(api: Api) -> None:
    for kind in (RequestError, *all_subclasses(RequestError)):
        assert api.metric(f'tgi_request_failure{{err="{kind.metric}"}}') == 0


def all_subclasses(kind: type[RequestError]) -> list[type[RequestError]]:
    return [each for sub in kind.__subclasses__() for each in (sub, *all_subclasses(sub))]


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
    assert api.metric("tgi_batch_current_max_tokens") == 5 * INFO.block_size
    assert api.metric("tgi_batch_total_tokens") == 40
    assert api.metric("tgi_batch_max_total_tokens") == 4096
    assert api.metric("tgi_kv_blocks_used") == 5
    assert api.metric("tgi_kv_blocks") == 256


def test_late_compiles_are_a_counter(api: Api) -> None:
    assert "# TYPE tgi_late_compiles counter\ntgi_late_compiles 0\n" in api.http.get("/metrics").text
    api.engine.stats = replace(api.engine.stats, late_compiles=2)
    assert api.metric("tgi_late_compiles") == 2


def test_steps_by_method(api: Api) -> None:
    on_step = api.engine.on_step
    assert on_step is not None
    prefill = EngineStats(prefill_tokens=5, step_ms=20.0, device_ms=19.0, plan_ms=2.0, apply_ms=1.0, started=3)
    on_step(prefill)
    on_step(replace(prefill, decode_tokens=1, started=2))
    for ended in (0, 1):
        on_step(EngineStats(decode_tokens=2, step_ms=10.0, device_ms=6.0, plan_ms=0.5, apply_ms=0.25, ended=ended))
    on_step(EngineStats(queue_size=1))  # News of the gauges, not a step.
    for method, count in (("prefill", 2), ("decode", 2)):
        assert api.metric(f'tgi_batch_inference_count{{method="{method}"}}') == count
        assert api.metric(f'tgi_batch_inference_success{{method="{method}"}}') == count
        assert api.metric(f'tgi_batch_inference_duration_count{{method="{method}"}}') == count
    assert api.metric('tgi_batch_inference_duration_sum{method="decode"}') == pytest.approx(2 * 0.01075)
    assert api.metric('tgi_batch_forward_duration_sum{method="decode"}') == pytest.approx(0.012)
    assert api.metric('tgi_batch_decode_duration_sum{method="prefill"}') == pytest.approx(0.002)
    assert api.metric('tgi_batch_filter_duration_count{method="decode"}') == 1
    assert api.metric('tgi_batch_filter_duration_count{method="prefill"}') == 0
    assert api.metric("tgi_batch_next_size_sum") == 5
    assert api.metric("tgi_batch_next_size_count") == 2
    # The first step found nobody to join.
    assert api.metric('tgi_batch_concat{reason="chunking"}') == 1
    assert api.metric('tgi_batch_concat_duration_sum{method="decode"}') == pytest.approx(0.002)


def test_a_lost_engine_counts_as_a_failed_step_like_the_last(api: Api) -> None:
    on_step = api.engine.on_step
    assert on_step is not None
    on_step(EngineStats(decode_tokens=2))
    api.state.metrics.observe_engine_lost()
    assert api.metric('tgi_batch_inference_count{method="decode"}') == 2
    assert api.metric('tgi_batch_inference_success{method="decode"}') == 1
    assert api.metric('tgi_batch_inference_failure{method="decode"}') == 1


def test_exposition_of_each_kind() -> None:
    counter = Counter("c", "A counter", "err", ("x", "y"))
    counter.inc(value="y")
    counter.inc(2, value="y")
    assert list(counter.lines()) == ["# HELP c A counter", "# TYPE c counter", 'c{err="x"} 0', 'c{err="y"} 3']
    assert list(Gauge("g", "A gauge", lambda: 0.5).lines()) == ["# HELP g A gauge", "# TYPE g gauge", "g 0.5"]
    read = ReadCounter("r", "A counter kept elsewhere", lambda: 2)
    assert list(read.lines()) == ["# HELP r A counter kept elsewhere", "# TYPE r counter", "r 2"]
    summary = Summary("s", "A summary")
    summary.observe(0.5)
    assert list(summary.lines()) == ["# HELP s A summary", "# TYPE s summary", "s_sum 0.5", "s_count 1"]
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
