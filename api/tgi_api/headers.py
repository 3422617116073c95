"""TGI's ``x-`` response headers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tgi_api.call import Call
from tgi_api.collect import Collected
from tgi_api.output import Prompt
from tgi_api.state import AppState


def stream_headers(server: AppState, prompts: Sequence[Prompt]) -> dict[str, str]:
    """Headers of a stream: what is known before the first token."""
    return {
        "x-compute-type": server.compute_type,
        "x-compute-characters": str(sum(len(prompt.text) for prompt in prompts)),
    }


def reply_headers(
    server: AppState, call: Call, prompts: Sequence[Prompt], outputs: Sequence[Collected]
) -> dict[str, str]:
    """Headers of a plain reply: times in milliseconds and counts, summed over ``prompts`` and their ``outputs``."""
    timings = [call.timings(output) for output in outputs]
    return stream_headers(server, prompts) | {
        "x-total-time": _milliseconds(timing.total_s for timing in timings),
        "x-validation-time": _milliseconds(timing.validation_s for timing in timings),
        "x-queue-time": _milliseconds(timing.queue_s for timing in timings),
        "x-inference-time": _milliseconds(timing.inference_s for timing in timings),
        "x-time-per-token": _milliseconds(timing.per_token_s for timing in timings),
        "x-prompt-tokens": str(sum(len(prompt.token_ids) for prompt in prompts)),
        "x-generated-tokens": str(sum(timing.generated_tokens for timing in timings)),
    }


def compute_time_header(call: Call, outputs: Sequence[Collected]) -> dict[str, str]:
    """The header that only replies to a single prompt have: seconds from arrival to the end."""
    return {"x-compute-time": f"{max(call.timings(output).total_s for output in outputs):.6f}"}


def _milliseconds(seconds: Iterable[float]) -> str:
    return str(round(sum(seconds) * 1000))
