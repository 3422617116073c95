"""Client and engine over a real ZeroMQ connection."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.engines import VOCAB_SIZE, TestEngine, write_null_model
from tgi_core.config import EngineInfo
from tgi_core.engine.channel import EngineChannel
from tgi_core.engine.client import EngineClient
from tgi_core.engine.frames import Finish
from tgi_core.engine.loop import EngineLoop
from tgi_core.errors import EngineUnavailableError, GenerationError, RequestError
from tgi_core.sampling import SamplingParams
from tgi_core.testing.null_backend import null_token

INFO = EngineInfo(
    max_input_tokens=511,
    max_total_tokens=512,
    max_step_tokens=256,
    max_slots=8,
    kv_tokens=4096,
    block_size=16,
    vocab_size=VOCAB_SIZE,
    dtype="float32",
    device="null",
    load_seconds=0.0,
    warm_up_seconds=0.0,
    memory=[],
)


class Sink:
    """Keeps what a request receives."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.finish = Finish.NOT
        self.error: RequestError | None = None
        self.admitted: list[tuple[float, int]] = []
        self.started = asyncio.Event()
        self.done = asyncio.Event()

    def on_admitted(self, queue_seconds: float, cached_tokens: int) -> None:
        self.admitted.append((queue_seconds, cached_tokens))

    def on_token(self, token_id: int, logprob: float, finish: Finish) -> None:
        self.tokens.append(token_id)
        self.started.set()
        self.finish = finish
        if finish:
            self.done.set()

    def on_error(self, error: RequestError) -> None:
        self.error = error
        self.done.set()


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """An engine in a thread, at this address."""
    address = f"ipc://{tmp_path}/engine"
    engine = TestEngine(write_null_model(tmp_path / "model"))
    channel = EngineChannel(address)
    loop = EngineLoop(engine.shard, engine.scheduler, channel, run_ahead=1, max_total_tokens=512)
    thread = threading.Thread(target=loop.run)
    thread.start()
    yield address
    loop.stop()
    thread.join()
    channel.close()


def test_many_requests_each_get_their_own_tokens(address: str) -> None:
    async def run() -> None:
        client = EngineClient()
        client.engine_up(address, INFO)
        sinks = [Sink() for _ in range(40)]
        for number, sink in enumerate(sinks):
            client.submit([number + 3, number + 4], 5 + number % 7, SamplingParams(), sink)
        await asyncio.wait_for(asyncio.gather(*(sink.done.wait() for sink in sinks)), 20)
        for number, sink in enumerate(sinks):
            expected = [null_token(number + 4, 2 + index, VOCAB_SIZE) for index in range(5 + number % 7)]
            assert sink.tokens == expected
            assert sink.finish is Finish.LENGTH
            assert len(sink.admitted) == 1
        assert client.in_flight == 0
        client.close()

    asyncio.run(run())


def test_requests_sent_while_results_arrive_lose_no_wake_up(address: str) -> None:
    """Sending on the socket may consume the edge that says that there is something to receive."""

    async def stream(client: EngineClient, number: int) -> None:
        for _ in range(60):
            sink = Sink()
            client.submit([number + 3], 2, SamplingParams(), sink)
            await sink.done.wait()

    async def run() -> None:
        client = EngineClient()
        client.engine_up(address, INFO)
        await asyncio.wait_for(asyncio.gather(*(stream(client, number) for number in range(32))), 30)
        client.close()

    asyncio.run(run())


def test_nothing_comes_after_a_cancel_and_gauges_fall_to_zero(address: str) -> None:
    async def run() -> None:
        client = EngineClient()
        client.engine_up(address, INFO)
        sink = Sink()
        request_id = client.submit([5], 500, SamplingParams(), sink)
        await sink.started.wait()
        client.cancel(request_id)
        client.cancel(request_id)
        seen = len(sink.tokens)
        for _ in range(400):
            await asyncio.sleep(0.005)
            if client.stats.batch_size == 0:
                break
        assert client.stats.batch_size == 0
        assert client.stats.kv_blocks_used == 0
        assert len(sink.tokens) == seen
        client.close()

    asyncio.run(run())


def test_a_lost_engine_fails_each_request_once_and_refuses_new_ones(address: str) -> None:
    async def run() -> None:
        client = EngineClient()
        with pytest.raises(EngineUnavailableError, match="starting"):
            client.submit([5], 5, SamplingParams(), Sink())
        client.engine_up(address, INFO)
        sink = Sink()
        client.submit([5], 500, SamplingParams(), sink)
        await sink.started.wait()
        client.engine_down("the engine was killed by SIGKILL")
        assert isinstance(sink.error, GenerationError)
        assert "SIGKILL" in str(sink.error)
        assert not client.is_up
        with pytest.raises(EngineUnavailableError, match="SIGKILL"):
            client.submit([5], 5, SamplingParams(), Sink())
        seen = len(sink.tokens)
        await asyncio.sleep(0.05)
        assert len(sink.tokens) == seen
        client.engine_up(address, INFO)
        again = Sink()
        client.submit([5], 4, SamplingParams(), again)
        await asyncio.wait_for(again.done.wait(), 10)
        assert again.tokens == [null_token(5, 1 + index, VOCAB_SIZE) for index in range(4)]
        client.close()

    asyncio.run(run())


def test_a_suspected_engine_still_takes_requests(address: str) -> None:
    async def run() -> None:
        client = EngineClient()
        client.engine_up(address, INFO)
        client.engine_suspect("silent")
        assert client.trouble == "silent"
        sink = Sink()
        client.submit([5], 2, SamplingParams(), sink)
        await asyncio.wait_for(sink.done.wait(), 10)
        client.engine_recovered()
        assert client.trouble == ""
        client.close()

    asyncio.run(run())
