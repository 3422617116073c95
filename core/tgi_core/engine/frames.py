"""The frames between API processes and an engine: msgpack, one frame a step, results as columns."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import msgspec

from tgi_core.sampling.grammar import Grammar
from tgi_core.sampling.params import SamplingParams
from tgi_core.scheduler.request import Finish


class Submit(msgspec.Struct, frozen=True, array_like=True, tag="submit"):
    """A new request.

    Attributes:
        request_id: unique in its API process for the process's life.
        prompt: token ids as int32 bytes.
        max_new_tokens: at least 1; the client has clamped it to the context.
        sampling: validated parameters.
        ignore_eos: EOS is a token like any other.
        grammar: what the output must match; None for anything.
        prompt_logprobs: report the log-probabilities of the prompt's tokens.
        stop_token_ids: tokens that end this request, beside the model's own.
    """

    request_id: int
    prompt: bytes
    max_new_tokens: int
    sampling: SamplingParams
    ignore_eos: bool = False
    grammar: Grammar | None = None
    prompt_logprobs: bool = False
    stop_token_ids: tuple[int, ...] = ()


class FinishRequest(msgspec.Struct, frozen=True, array_like=True, tag="finish"):
    """The API process has ended the request after ``num_tokens`` output tokens (a stop string); idempotent."""

    request_id: int
    num_tokens: int


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag="cancel"):
    """The client has gone or a deadline has passed; idempotent."""

    request_id: int


Command = Submit | FinishRequest | Cancel


class EngineStats(msgspec.Struct, frozen=True, array_like=True):
    """Gauges after a step, and what the step was.

    Attributes:
        queue_size: requests waiting.
        batch_size: requests running.
        batch_tokens: tokens in the running requests' caches.
        kv_blocks_used, kv_blocks: of the main KV group; blocks held only by the prefix cache are not "used".
        preemptions: since start.
        prefill_tokens, decode_tokens: computed in this step.
        step_ms: launch to collect.
        device_ms: of these what the device worked on this step alone, not on the one before it.
        plan_ms: to plan the step.
        apply_ms: to take in its tokens: stopping checks, blocks given back.
        started: requests that entered a slot with this step, those that come back after a preemption included.
        ended: requests that ended with this step.
        late_compiles: programs that steps of this engine have compiled while requests waited; should stay 0.
    """

    queue_size: int = 0
    batch_size: int = 0
    batch_tokens: int = 0
    kv_blocks_used: int = 0
    kv_blocks: int = 0
    preemptions: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    step_ms: float = 0.0
    device_ms: float = 0.0
    plan_ms: float = 0.0
    apply_ms: float = 0.0
    started: int = 0
    ended: int = 0
    late_compiles: int = 0


class StepFrame(msgspec.Struct, frozen=True, array_like=True, tag="step"):
    """The results of one step for one API process, as columns; row i of every column is one request.

    Attributes:
        step: number of the step.
        request_ids: uint64. token_ids: int32. logprobs: float32. finishes: uint8, values of ``Finish``.
        admitted: (request_id, seconds in the queue, prompt tokens found in the prefix cache) of requests that
            started in this step; a request is admitted once, whatever happens to it later.
        stats: gauges after the step.
        tops: (request_id, int32 token ids, float32 log-probabilities) of the most likely tokens beside the row's, of
            the rows that asked for them.
        prompt_logprobs: (request_id, float32 log-probabilities of its prompt's tokens from the second on), once for
            each request that asked, with its first token.
    """

    step: int
    request_ids: bytes
    token_ids: bytes
    logprobs: bytes
    finishes: bytes
    admitted: list[tuple[int, float, int]]
    stats: EngineStats
    tops: list[tuple[int, bytes, bytes]] = []
    prompt_logprobs: list[tuple[int, bytes]] = []


class RequestFailed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """One request ended with an error; nothing more comes for it."""

    request_id: int
    message: str


EngineMessage = StepFrame | RequestFailed

__all__ = [
    "Cancel",
    "Command",
    "EngineMessage",
    "EngineStats",
    "Finish",
    "FinishRequest",
    "RequestFailed",
    "StepFrame",
    "Submit",
    "decode_command",
    "decode_message",
    "encode",
    "pack_floats",
    "pack_ids",
    "pack_request_ids",
    "unpack_floats",
    "unpack_ids",
    "unpack_request_ids",
]

_COMMAND_DECODER = msgspec.msgpack.Decoder(Command)
_MESSAGE_DECODER = msgspec.msgpack.Decoder(EngineMessage)
_ENCODER = msgspec.msgpack.Encoder()


def encode(message: Command | EngineMessage) -> bytes:
    """One frame."""
    return _ENCODER.encode(message)


def decode_command(frame: bytes) -> Command:
    """Read a frame sent to the engine."""
    return _COMMAND_DECODER.decode(frame)


def decode_message(frame: bytes) -> EngineMessage:
    """Read a frame sent by the engine."""
    return _MESSAGE_DECODER.decode(frame)


def pack_ids(ids: Iterable[int]) -> bytes:
    """Token ids as int32 bytes."""
    return array("i", ids).tobytes()


def unpack_ids(column: bytes) -> array[int]:
    """int32 bytes as token ids."""
    ids = array("i")
    ids.frombytes(column)
    return ids


def pack_request_ids(ids: Iterable[int]) -> bytes:
    """Request ids as uint64 bytes."""
    return array("Q", ids).tobytes()


def unpack_request_ids(column: bytes) -> array[int]:
    """uint64 bytes as request ids."""
    ids = array("Q")
    ids.frombytes(column)
    return ids


def pack_floats(values: Iterable[float]) -> bytes:
    """Numbers as float32 bytes."""
    return array("f", values).tobytes()


def unpack_floats(column: bytes) -> array[float]:
    """float32 bytes as numbers."""
    values = array("f")
    values.frombytes(column)
    return values
