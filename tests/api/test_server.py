"""The API process: what it does at each message of its supervisor."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import httpx
import pytest

from tests.support.api import EOS_ID, INFO, MODEL_ID, TEMPLATE, make_state, write_tokenizer
from tgi_api.server import ApiProcess, load_chat, make_checker, run_api
from tgi_core.config import ApiConfig, EngineConfig, ModelConfig, ServerConfig
from tgi_core.engine.control import (
    ApiReady,
    Control,
    EngineDown,
    EngineRecovered,
    EngineSuspect,
    EngineUp,
    Refused,
    Shutdown,
    receive_control,
    send_control,
)
from tgi_core.errors import ExitCode, StartupError, TemplateError
from tgi_core.model_folder import ModelFolder
from tgi_core.requests import TextTokenizer
from tgi_core.requests.chat_format import ChatFormats, make_formats
from tgi_core.sampling.grammar import Vocabulary
from tgi_core.sampling.grammar.checker import GrammarChecker

CHAT = {"messages": [{"role": "user", "content": "hello"}], "stream": True}


class ClosingChecker(GrammarChecker):
    """Tells whether it was closed."""

    closed = False

    async def close(self) -> None:
        await super().close()
        self.closed = True


class Supervised:
    """An API process in this one, and its supervisor's side.

    Attributes:
        url: where it listens.
        running: the process's life.
        grammars: its test of grammars.
    """

    def __init__(self, tokenizer: TextTokenizer, folder: Path, graceful_s: float) -> None:
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.address = f"ipc://{folder}/engine"
        self.pipe, self._remote = multiprocessing.Pipe()
        config = make_state(tokenizer, graceful_termination_timeout_s=graceful_s).config
        # The process closes its tokenizer when it ends; the one of the tests lives on.
        own = TextTokenizer(write_tokenizer(folder), workers=1)
        chat = make_formats({"default": TEMPLATE}, {}, "llama", tool_parsers=(), reasoning_parsers=())
        self.grammars = ClosingChecker("any", Vocabulary(folder / "tokenizer.json", INFO.vocab_size, (EOS_ID,)))
        self._process = ApiProcess(config, own, chat, self.listener, self._remote, grammars=self.grammars)

    def start(self) -> None:
        self.running = asyncio.create_task(self._process.run())

    def tell(self, message: Control) -> None:
        send_control(self.pipe, message)

    async def hear(self) -> Control:
        """The next message of the process."""
        return await asyncio.wait_for(asyncio.to_thread(receive_control, self.pipe), 5)

    async def up(self) -> None:
        """An engine comes up, and the process listens."""
        self.tell(EngineUp(self.address, INFO))
        assert isinstance(await self.hear(), ApiReady)

    def close(self) -> None:
        self.pipe.close()
        self._remote.close()
        self.listener.close()


@pytest.fixture(scope="module", autouse=True)
def _thawed() -> Iterator[None]:
    """The process freezes what the collector knows; what these tests have left behind is looked at once."""
    yield
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def supervise(
    tokenizer: TextTokenizer,
    folder: Path,
    scenario: Callable[[Supervised, httpx.AsyncClient], Awaitable[None]],
    *,
    graceful_s: float = 5.0,
) -> None:
    """Run a scenario on a process, which must have ended by itself when the scenario is over."""

    @asynccontextmanager
    async def supervised() -> AsyncIterator[Supervised]:
        process = Supervised(tokenizer, folder, graceful_s)
        process.start()
        try:
            yield process
            await asyncio.wait_for(process.running, 5)
            assert process.grammars.closed
        finally:
            process.running.cancel()
            process.close()

    async def run() -> None:
        async with supervised() as process, httpx.AsyncClient(base_url=process.url, trust_env=False) as http:
            await scenario(process, http)

    asyncio.run(run())


def test_it_listens_only_when_an_engine_is_up(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    async def scenario(process: Supervised, http: httpx.AsyncClient) -> None:
        process.tell(EngineDown("it did not start"))
        await asyncio.sleep(0.05)
        with pytest.raises(httpx.ConnectError):
            await http.get("/health")
        await process.up()
        assert (await http.get("/health")).status_code == 200
        process.tell(Shutdown())

    supervise(tokenizer, tmp_path, scenario)


def test_health_follows_the_engine(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    async def scenario(process: Supervised, http: httpx.AsyncClient) -> None:
        async def health() -> tuple[int, str]:
            await asyncio.sleep(0.05)
            reply = await http.get("/health")
            return reply.status_code, reply.text and reply.json()["error"]

        await process.up()
        assert await health() == (200, "")
        process.tell(EngineSuspect("no sign of life"))
        assert await health() == (503, "unhealthy: no sign of life")
        process.tell(EngineRecovered())
        assert await health() == (200, "")
        process.tell(EngineDown("killed"))
        assert await health() == (503, "unhealthy: killed")
        reply = await http.post("/generate", json={"inputs": "x"})
        assert reply.status_code == 503
        assert "retry-after" in reply.headers
        process.tell(EngineUp(process.address + "2", INFO))
        assert await health() == (200, "")
        process.tell(Shutdown())

    supervise(tokenizer, tmp_path, scenario)


def test_shutdown_waits_for_what_runs_and_refuses_the_rest(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    async def scenario(process: Supervised, http: httpx.AsyncClient) -> None:
        await process.up()
        async with http.stream("POST", "/v1/chat/completions", json=CHAT) as running:
            assert running.status_code == 200
            process.tell(Shutdown())
            await asyncio.sleep(0.1)
            refused = await http.post("/generate", json={"inputs": "x"})
            assert refused.status_code == 503
            assert (await http.get("/health")).status_code == 503
            assert not process.running.done()
            process.tell(EngineDown("gone"))
            assert "gone" in (await running.aread()).decode()

    supervise(tokenizer, tmp_path, scenario)


def test_after_the_time_allowed_what_runs_is_ended(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    async def scenario(process: Supervised, http: httpx.AsyncClient) -> None:
        await process.up()
        async with http.stream("POST", "/v1/chat/completions", json=CHAT) as running:
            process.tell(Shutdown())
            stream = (await running.aread()).decode()
        assert "shutting down" in stream
        assert stream.endswith("data: [DONE]\n\n")

    supervise(tokenizer, tmp_path, scenario, graceful_s=0.1)


def test_a_second_stop_signal_ends_what_runs_at_once(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    async def scenario(process: Supervised, http: httpx.AsyncClient) -> None:
        await process.up()
        async with http.stream("POST", "/v1/chat/completions", json=CHAT) as running:
            # A service manager may signal every process beside the supervisor: that is still the first time.
            process.tell(Shutdown())
            process.tell(Shutdown())
            await asyncio.sleep(0.1)
            assert not process.running.done()
            process.tell(Shutdown(at_once=True))
            stream = (await running.aread()).decode()
        assert "shutting down" in stream
        assert stream.endswith("data: [DONE]\n\n")

    supervise(tokenizer, tmp_path, scenario, graceful_s=60)


def test_an_engine_that_is_lost_with_requests_is_a_failed_step(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    async def scenario(process: Supervised, http: httpx.AsyncClient) -> None:
        async def failures() -> str:
            await asyncio.sleep(0.05)
            lines = (await http.get("/metrics")).text.splitlines()
            return next(line for line in lines if line.startswith('tgi_batch_inference_failure{method="prefill"'))

        await process.up()
        process.tell(EngineDown("it had nothing to do"))
        assert (await failures()).endswith(" 0")
        process.tell(EngineUp(process.address + "2", INFO))
        await asyncio.sleep(0.05)
        async with http.stream("POST", "/v1/chat/completions", json=CHAT) as running:
            process.tell(EngineDown("gone"))
            await running.aread()
        assert (await failures()).endswith(" 1")
        process.tell(Shutdown())

    supervise(tokenizer, tmp_path, scenario)


def test_sigterm_means_shutdown(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    async def scenario(process: Supervised, http: httpx.AsyncClient) -> None:
        await process.up()
        os.kill(os.getpid(), signal.SIGTERM)

    supervise(tokenizer, tmp_path, scenario)


@pytest.mark.parametrize("is_up", [False, True])
def test_without_a_supervisor_it_ends(tokenizer: TextTokenizer, tmp_path: Path, is_up: bool) -> None:
    async def scenario(process: Supervised, http: httpx.AsyncClient) -> None:
        if is_up:
            await process.up()
        process.pipe.close()

    supervise(tokenizer, tmp_path, scenario)


def test_shutdown_before_any_engine(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    async def scenario(process: Supervised, http: httpx.AsyncClient) -> None:
        process.tell(Shutdown())

    supervise(tokenizer, tmp_path, scenario)


def write_model(folder: Path) -> Path:
    """A folder with all that the API process reads."""
    write_tokenizer(folder)
    (folder / "config.json").write_text('{"model_type": "llama", "vocab_size": 500}')
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": {"content": "</s>"}}')
    return folder


def test_templates(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    nothing = load_chat(ModelFolder(folder))
    assert isinstance(nothing, TemplateError)
    assert "--chat-template" in str(nothing)
    jinja = folder / "chat_template.jinja"
    jinja.write_text("{% if %}")
    assert isinstance(load_chat(ModelFolder(folder)), TemplateError)
    jinja.write_text("{{ bos_token }}{{ eos_token }}{{ messages[0].content }}")
    chat = load_chat(ModelFolder(folder))
    assert isinstance(chat, ChatFormats)
    template = chat.choose(None, has_tools=False).template
    assert template.render([{"role": "user", "content": "hi"}]) == "<s></s>hi"


def test_parsers_are_chosen_by_template_or_by_name(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    (folder / "chat_template.jinja").write_text("{{ tools }}<tool_call></think>")
    names = []
    for options in ({}, {"tool_call_parser": "mistral", "reasoning_parser": "granite"}, {"reasoning_parser": "none"}):
        chat = load_chat(ModelFolder(folder), **options)
        assert isinstance(chat, ChatFormats)
        (found,) = chat
        names.append((found.tool_parser.name, found.reasoning_parser and found.reasoning_parser.name))
    assert names == [("hermes", "think"), ("mistral", "granite"), ("hermes", None)]
    with pytest.raises(StartupError, match="hermes"):
        load_chat(ModelFolder(folder), tool_call_parser="nothing")


def test_grammars_can_be_switched_off(tmp_path: Path) -> None:
    folder = ModelFolder(write_model(tmp_path))
    assert make_checker(None, folder) is None
    assert isinstance(make_checker("llguidance", folder), GrammarChecker)


class Spawned:
    """``run_api`` in a process of its own, as the supervisor starts it."""

    def __init__(self, folder: Path) -> None:
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        config = ServerConfig(
            model=ModelConfig(model_id=MODEL_ID, model_dir=folder),
            engine=EngineConfig(backend="null", dtype="float32"),
            api=ApiConfig(),
        )
        self.pipe: Connection
        self.pipe, remote = multiprocessing.Pipe()
        spawn = multiprocessing.get_context("spawn")
        self.process = spawn.Process(target=run_api, args=(config, self.listener, remote))
        self.process.start()
        remote.close()

    def __enter__(self) -> Spawned:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.join()
        self.process.close()
        self.pipe.close()
        self.listener.close()


def test_a_process_of_its_own(tmp_path: Path) -> None:
    with Spawned(write_model(tmp_path)) as spawned:
        send_control(spawned.pipe, EngineUp(f"ipc://{tmp_path}/engine", INFO))
        assert isinstance(receive_control(spawned.pipe), ApiReady)
        assert spawned.process.pid is not None
        os.kill(spawned.process.pid, signal.SIGINT)
        threading.Event().wait(0.1)
        assert httpx.get(f"{spawned.url}/info", trust_env=False).json()["model_id"] == MODEL_ID
        send_control(spawned.pipe, Shutdown())
        spawned.process.join(10)
        assert spawned.process.exitcode == 0


def test_a_model_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    (write_model(tmp_path) / "tokenizer.json").unlink()
    with Spawned(tmp_path) as spawned:
        refusal = receive_control(spawned.pipe)
        assert isinstance(refusal, Refused)
        assert "tokenizer.json" in refusal.cause
        spawned.process.join(10)
        assert spawned.process.exitcode == ExitCode.MODEL


def test_a_malformed_template_file_is_a_refusal(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    (folder / "tokenizer_config.json").write_text('{"chat_template": 3}')
    with pytest.raises(StartupError, match="chat_template"):
        load_chat(ModelFolder(folder))
