"""TGI's metrics, by their names, labels and buckets, and a few of our own."""

from __future__ import annotations

import msgspec

from tgi_api.exposition import Counter, Gauge, Histogram, Metric, ReadCounter, Summary
from tgi_core.config import EngineInfo
from tgi_core.engine.client import EngineClient
from tgi_core.engine.frames import EngineStats

DURATION_BOUNDS_S = tuple(0.0001 * 1.5**k for k in range(1, 36))
_METHODS = ("prefill", "decode")
_JOINED = "chunking"
_JOIN_REASONS = ("backpressure", "wait_exceeded", _JOINED)
_FAILURES = ("overloaded", "validation", "template", "tool", "generation", "incomplete", "cancelled", "dropped")


class RequestTimings(msgspec.Struct, frozen=True):
    """What a finished request took, in seconds, and its token counts.

    Attributes:
        total_s: from the arrival of the request to its last token.
        validation_s: until it was sent to the engine.
        queue_s: in the engine's queue.
        inference_s: from leaving the queue to the last token.
        first_token_s: from arrival to the first token.
        input_tokens, generated_tokens: counts; EOS is one of the generated.
        cached_tokens: prompt tokens found in the prefix cache.
    """

    total_s: float
    validation_s: float
    queue_s: float
    inference_s: float
    first_token_s: float
    input_tokens: int
    generated_tokens: int
    cached_tokens: int

    @property
    def per_token_s(self) -> float:
        """Mean time of one generated token."""
        return self.inference_s / max(1, self.generated_tokens)


class Metrics:
    """All metrics of one API process.

    Args:
        client: read for the gauges when the metrics are scraped.
        info: its limits set the buckets of the length histograms.
    """

    def __init__(self, client: EngineClient, info: EngineInfo) -> None:
        self.request_count = Counter("tgi_request_count", "Requests received")
        self.request_success = Counter("tgi_request_success", "Requests that ended with all their tokens")
        self.request_failure = Counter("tgi_request_failure", "Requests that failed, by cause", "err", _FAILURES)
        self.request_duration = _durations("tgi_request_duration", "Seconds from arrival to the last token")
        self.validation_duration = _durations(
            "tgi_request_validation_duration", "Seconds until the request was checked and tokenized"
        )
        self.queue_duration = _durations("tgi_request_queue_duration", "Seconds in the engine's queue")
        self.inference_duration = _durations(
            "tgi_request_inference_duration", "Seconds from leaving the queue to the last token"
        )
        self.per_token_duration = _durations(
            "tgi_request_mean_time_per_token_duration", "Seconds of inference for one generated token"
        )
        self.first_token_duration = _durations(
            "tgi_request_time_to_first_token_duration", "Seconds from arrival to the first token"
        )
        self.input_length = _lengths("tgi_request_input_length", "Prompt tokens of a request", info.max_input_tokens)
        self.generated_tokens = _lengths(
            "tgi_request_generated_tokens", "Generated tokens of a request", info.max_total_tokens
        )
        self.max_new_tokens = _lengths(
            "tgi_request_max_new_tokens", "Most tokens that a request may generate", info.max_total_tokens
        )
        self.skipped_tokens = Summary("tgi_request_skipped_tokens", "Speculated tokens accepted in a step")
        self.cached_tokens = Counter("tgi_prefix_cache_hit_tokens", "Prompt tokens found in the prefix cache")
        self.step_count = Counter("tgi_batch_inference_count", "Engine steps", "method", _METHODS)
        self.step_success = Counter("tgi_batch_inference_success", "Engine steps that succeeded", "method", _METHODS)
        self.step_failure = Counter("tgi_batch_inference_failure", "Engines lost in a step", "method", _METHODS)
        self.step_duration = _durations(
            "tgi_batch_inference_duration",
            "Seconds from the planning of a step until its tokens were taken in",
            _METHODS,
        )
        self.forward_duration = _durations(
            "tgi_batch_forward_duration", "Seconds that the device worked on a step", _METHODS
        )
        self.decode_duration = _durations(
            "tgi_batch_decode_duration", "Seconds of the stopping checks after a step", _METHODS
        )
        self.filter_duration = _durations(
            "tgi_batch_filter_duration", "The same of the steps with which requests left the batch", _METHODS
        )
        self.new_batch_size = Histogram(
            "tgi_batch_next_size", "Requests that entered the batch with a step", range(1, 1025)
        )
        self.joins = Counter(
            "tgi_batch_concat", "Steps with which requests joined others that ran", "reason", _JOIN_REASONS
        )
        self.join_duration = _durations(
            "tgi_batch_concat_duration", "Seconds of the planning of these steps", ("decode",)
        )
        self.queue_size = Gauge(
            "tgi_queue_size", "Requests that wait in the engine's queue", lambda: client.stats.queue_size
        )
        self.batch_size = Gauge(
            "tgi_batch_current_size", "Requests in the running batch", lambda: client.stats.batch_size
        )
        self.batch_tokens = Gauge(
            "tgi_batch_current_max_tokens",
            "Tokens that the KV blocks of the running batch hold",
            lambda: client.stats.kv_blocks_used * info.block_size,
        )
        self.batch_used_tokens = Gauge(
            "tgi_batch_total_tokens", "Tokens in the caches of the running batch", lambda: client.stats.batch_tokens
        )
        self.kv_tokens = Gauge("tgi_batch_max_total_tokens", "Tokens that the KV cache holds", lambda: info.kv_tokens)
        self.kv_blocks_used = Gauge("tgi_kv_blocks_used", "KV blocks in use", lambda: client.stats.kv_blocks_used)
        self.kv_blocks = Gauge("tgi_kv_blocks", "KV blocks", lambda: client.stats.kv_blocks)
        self.preemptions = ReadCounter(
            "tgi_preemptions",
            "Requests put back into the queue since the engine's start",
            lambda: client.stats.preemptions,
        )
        self.late_compiles = ReadCounter(
            "tgi_late_compiles",
            "Programs compiled while requests waited; should stay 0",
            lambda: client.late_compiles,
        )
        self._method = _METHODS[0]

    def observe_step(self, stats: EngineStats) -> None:
        """One engine step: the engine client's ``on_step``."""
        if not stats.prefill_tokens and not stats.decode_tokens:
            # Only the gauges have changed, as after a cancel; no step was computed.
            return
        self._method = method = "prefill" if stats.prefill_tokens else "decode"
        self.step_count.inc(value=method)
        self.step_success.inc(value=method)
        self.step_duration.observe((stats.plan_ms + stats.step_ms + stats.apply_ms) / 1000, method)
        self.forward_duration.observe(stats.device_ms / 1000, method)
        self.decode_duration.observe(stats.apply_ms / 1000, method)
        if stats.ended:
            self.filter_duration.observe(stats.apply_ms / 1000, method)
        if stats.started:
            self.new_batch_size.observe(stats.started)
            if stats.decode_tokens:
                self.joins.inc(value=_JOINED)
                self.join_duration.observe(stats.plan_ms / 1000, "decode")

    def observe_engine_lost(self) -> None:
        """The engine went down while requests ran; the step is taken for one like the last."""
        self.step_count.inc(value=self._method)
        self.step_failure.inc(value=self._method)

    def observe_submitted(self, input_tokens: int, max_new_tokens: int, validation_s: float) -> None:
        """A request has passed validation and goes to the engine."""
        self.validation_duration.observe(validation_s)
        self.input_length.observe(input_tokens)
        self.max_new_tokens.observe(max_new_tokens)

    def observe_success(self, timings: RequestTimings) -> None:
        """A request has ended with all its tokens."""
        self.request_success.inc()
        self.request_duration.observe(timings.total_s)
        self.queue_duration.observe(timings.queue_s)
        self.inference_duration.observe(timings.inference_s)
        self.per_token_duration.observe(timings.per_token_s)
        self.first_token_duration.observe(timings.first_token_s)
        self.generated_tokens.observe(timings.generated_tokens)
        self.cached_tokens.inc(timings.cached_tokens)

    def render(self) -> bytes:
        """The whole exposition."""
        families = [member for member in vars(self).values() if isinstance(member, Metric)]
        return ("\n".join(line for family in families for line in family.lines()) + "\n").encode()


def _durations(name: str, help_text: str, methods: tuple[str, ...] = ()) -> Histogram:
    if methods:
        return Histogram(name, help_text, DURATION_BOUNDS_S, "method", methods)
    return Histogram(name, help_text, DURATION_BOUNDS_S)


def _lengths(name: str, help_text: str, limit: int) -> Histogram:
    return Histogram(name, help_text, [limit * k / 100 for k in range(1, 101)])
