"""Frames survive the wire, with full-size numbers."""

from __future__ import annotations

import math

from tgi_core.engine.frames import (
    Cancel,
    EngineStats,
    Finish,
    FinishRequest,
    RequestFailed,
    StepFrame,
    Submit,
    decode_command,
    decode_message,
    encode,
    pack_floats,
    pack_ids,
    pack_request_ids,
    unpack_floats,
    unpack_ids,
    unpack_request_ids,
)
from tgi_core.sampling import SamplingParams


def test_commands() -> None:
    sampling = SamplingParams(do_sample=True, temperature=0.5, top_k=3, top_p=0.9, seed=2**64 - 1)
    for command in (Submit(1, pack_ids([5, 6]), 7, sampling, True), FinishRequest(2**40, 3), Cancel(9)):
        assert decode_command(encode(command)) == command


def test_a_step_of_columns() -> None:
    frame = StepFrame(
        3,
        pack_request_ids([1, 2**63]),
        pack_ids([0, 151_935]),
        pack_floats([-0.25, -math.inf]),
        bytes([Finish.NOT, Finish.EOS]),
        [(1, 0.5, 16)],
        EngineStats(queue_size=4, step_ms=1.5),
    )
    again = decode_message(encode(frame))
    assert again == frame
    assert isinstance(again, StepFrame)
    assert unpack_request_ids(again.request_ids).tolist() == [1, 2**63]
    assert unpack_ids(again.token_ids).tolist() == [0, 151_935]
    assert unpack_floats(again.logprobs).tolist() == [-0.25, -math.inf]


def test_a_failure() -> None:
    assert decode_message(encode(RequestFailed(1, "why"))) == RequestFailed(1, "why")
