"""An API server over an engine that says what a test wants it to say."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
import uvicorn
from litestar import Litestar
from litestar.testing import TestClient
from tokenizers import Tokenizer, processors

from tests.support.text_tokenizers import BOS, EOS, byte_level_json, encode
from tgi_api.app import create_app
from tgi_api.state import AppState
from tgi_core.config import ApiConfig, EngineConfig, EngineInfo, ModelConfig, ServerConfig
from tgi_core.engine.client import EngineClient, TokenSink
from tgi_core.engine.frames import EngineStats, Finish
from tgi_core.errors import EngineUnavailableError, GenerationError, TemplateError
from tgi_core.requests import TextTokenizer
from tgi_core.requests.chat_format import ChatFormats, make_formats
from tgi_core.requests.reasoning.builtin import REASONING_PARSERS
from tgi_core.requests.tools.builtin import TOOL_PARSERS
from tgi_core.sampling.defaults import SamplingDefaults
from tgi_core.sampling.grammar import Grammar, GrammarError
from tgi_core.sampling.params import SamplingParams

if TYPE_CHECKING:
    from tgi_core.sampling.grammar.checker import GrammarChecker

MODEL_ID = "tests/tiny"
BOS_ID, EOS_ID = 0, 1
LOGPROB = -0.10000000149011612
"""The float32 next to -0.1, as a float64."""

TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'refuse' %}{{ raise_exception('no such role') }}{% endif %}"
    "<{{ message.role }}>{{ message.content }}"
    "{% for call in message.tool_calls or [] %}"
    "[{{ call.function.name }}({{ call.function.arguments.city }})]{% endfor %}"
    "{{ '\n' }}{% endfor %}"
    "{% if tools %}tools:{{ tools[0].function.name + '\n' }}{% endif %}{{ mood or '' }}"
    "{{ documents[0].text if documents else '' }}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)

INFO = EngineInfo(
    max_input_tokens=100,
    max_total_tokens=128,
    max_step_tokens=64,
    max_slots=8,
    kv_tokens=4096,
    block_size=16,
    vocab_size=500,
    dtype="float32",
    device="Test Device",
    load_seconds=0.0,
    warm_up_seconds=0.0,
    memory=[],
)


def write_tokenizer(folder: Path) -> Path:
    """A byte-level ``tokenizer.json`` that puts BOS in front."""
    tokenizer = Tokenizer.from_str(byte_level_json())
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, BOS_ID)])
    file = folder / "tokenizer.json"
    tokenizer.save(str(file))
    return file


class Submitted(msgspec.Struct):
    """A request as the engine got it."""

    request_id: int
    prompt: list[int]
    max_new_tokens: int
    sampling: SamplingParams
    sink: TokenSink
    ignore_eos: bool
    grammar: Grammar | None
    prompt_logprobs: bool
    stop_token_ids: tuple[int, ...]


class FakeGrammars:
    """Stands for the process that tests grammars, and normalizes them by upper-casing them.

    Attributes:
        checked: what was to be tested.
        refusal: why each of them is refused; "" when none is.
    """

    def __init__(self) -> None:
        self.checked: list[Grammar] = []
        self.refusal = ""

    async def check(self, grammar: Grammar) -> Grammar:
        self.checked.append(grammar)
        if self.refusal:
            raise GrammarError(self.refusal)
        return Grammar(grammar.kind, grammar.source.upper())


class FakeEngine(EngineClient):
    """An engine client without an engine: every request gets the tokens of ``reply`` and then EOS, one a loop turn.

    Attributes:
        reply: token ids that every prompt is continued with.
        replies: what the first, second, ... request gets instead of ``reply``.
        logprob: of every token.
        logprobs: what the tokens of the first, second, ... request have instead of ``logprob``.
        tops: (token ids, log-probabilities) for each token of a request that asks for alternatives, as many as asked.
        prompt_logprob: of every token of a prompt but the first.
        paused: requests wait for ``push`` instead.
        fail_after: tokens after which a request fails; None for never.
        submitted, cancelled, finished: what was asked of the engine.
    """

    def __init__(self, tokenizer: TextTokenizer, info: EngineInfo) -> None:
        self.info = info
        self.stats = EngineStats(queue_size=3, batch_size=2, batch_tokens=40, kv_blocks_used=5, kv_blocks=256)
        self.on_step = None
        self._late_compiles_before = 0
        self.trouble = ""
        self.tokenizer = tokenizer
        self.up = True
        self.reply: Sequence[int] = ()
        self.replies: Sequence[Sequence[int]] = ()
        self.logprob = LOGPROB
        self.logprobs: Sequence[float] = ()
        self.tops: tuple[Sequence[int], Sequence[float]] = ((), ())
        self.prompt_logprob = -0.5
        self.paused = False
        self.fail_after: int | None = None
        self.submitted: list[Submitted] = []
        self.cancelled: list[int] = []
        self.finished: list[tuple[int, int]] = []
        self._live: dict[int, TokenSink] = {}

    @property
    def is_up(self) -> bool:
        return self.up

    @property
    def in_flight(self) -> int:
        return len(self._live)

    def say(self, text: str) -> None:
        """Continue every prompt with ``text``."""
        self.reply = encode(self.tokenizer, text)

    def submit(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        sampling: SamplingParams,
        sink: TokenSink,
        *,
        ignore_eos: bool = False,
        grammar: Grammar | None = None,
        prompt_logprobs: bool = False,
        stop_token_ids: tuple[int, ...] = (),
    ) -> int:
        if not self.up:
            raise EngineUnavailableError(f"The model is not available: {self.trouble}")
        index = len(self.submitted)
        request_id = index + 1
        self.submitted.append(
            Submitted(
                request_id,
                list(prompt),
                max_new_tokens,
                sampling,
                sink,
                ignore_eos,
                grammar,
                prompt_logprobs,
                stop_token_ids,
            )
        )
        self._live[request_id] = sink
        if not self.paused:
            sink.on_admitted(0.25, 7)
            reply = self.replies[index] if index < len(self.replies) else self.reply
            self._schedule(request_id, [*reply, EOS_ID][:max_new_tokens], 0)
        return request_id

    def push(self, request_id: int, token_id: int, finish: Finish = Finish.NOT) -> None:
        """Deliver one token by hand; on the server's event loop."""
        sink = self._live.get(request_id)
        if sink is not None:
            if finish:
                del self._live[request_id]
            index = request_id - 1
            if self.submitted[index].sampling.top_n:
                sink.on_top_tokens(*self.tops)
            sink.on_token(token_id, self.logprobs[index] if index < len(self.logprobs) else self.logprob, finish)

    def finish(self, request_id: int, num_tokens: int) -> None:
        if self._live.pop(request_id, None) is not None:
            self.finished.append((request_id, num_tokens))

    def cancel(self, request_id: int) -> None:
        if self._live.pop(request_id, None) is not None:
            self.cancelled.append(request_id)

    def engine_down(self, reason: str) -> None:
        self.up, self.trouble = False, reason
        sinks, self._live = self._live, {}
        for sink in sinks.values():
            sink.on_error(GenerationError(reason))

    def close(self) -> None:
        self.engine_down("the server is shutting down")

    def _schedule(self, request_id: int, ids: list[int], index: int) -> None:
        asyncio.get_running_loop().call_soon(self._step, request_id, ids, index)

    def _step(self, request_id: int, ids: list[int], index: int) -> None:
        if request_id not in self._live:
            return
        if index == self.fail_after:
            self._live.pop(request_id).on_error(GenerationError("the device is on fire"))
            return
        submitted = self.submitted[request_id - 1]
        if index == 0 and submitted.prompt_logprobs:
            assert self.info is not None
            scored = self.info.decoder_prompt or submitted.prompt
            submitted.sink.on_prompt_logprobs([self.prompt_logprob] * (len(scored) - 1))
        is_stop = ids[index] in submitted.stop_token_ids
        last = is_stop or index + 1 == len(ids)
        finish = Finish.STOP_TOKEN if is_stop else Finish.NOT
        if last and not is_stop:
            finish = Finish.EOS if ids[index] == EOS_ID else Finish.LENGTH
        self.push(request_id, ids[index], finish)
        if not last:
            self._schedule(request_id, ids, index + 1)


def make_state(
    tokenizer: TextTokenizer,
    *,
    info: EngineInfo = INFO,
    template: str | None = TEMPLATE,
    templates: Mapping[str, str] | None = None,
    grammars: bool = True,
    defaults: SamplingDefaults | None = None,
    **api: Any,
) -> AppState:
    """A server's state over a FakeEngine and, with ``grammars``, FakeGrammars; ``api`` are settings of ApiConfig."""
    config = ServerConfig(
        model=ModelConfig(model_id=MODEL_ID, model_dir=Path("nowhere")),
        engine=EngineConfig(backend="null", dtype="float32"),
        api=ApiConfig(**api),
    )
    chat: ChatFormats | TemplateError = TemplateError("the model has no chat template")
    if template is not None:
        chat = _formats(("default", template), *(templates or {}).items())
    checker = cast("GrammarChecker", FakeGrammars()) if grammars else None
    return AppState(config, FakeEngine(tokenizer, info), tokenizer, chat, checker, defaults=defaults)


@functools.cache
def _formats(*templates: tuple[str, str]) -> ChatFormats:
    return make_formats(
        dict(templates),
        {"bos_token": BOS, "eos_token": EOS},
        "llama",
        tool_parsers=TOOL_PARSERS,
        reasoning_parsers=REASONING_PARSERS,
    )


class Api:
    """A server without sockets.

    Attributes:
        state, engine: what stands behind the routes.
        http: a client of the whole application.
    """

    def __init__(self, state: AppState, http: TestClient[Any]) -> None:
        self.state = state
        self.http = http
        engine = state.client
        assert isinstance(engine, FakeEngine)
        self.engine = engine

    @property
    def grammars(self) -> FakeGrammars:
        """What stands for the tests of grammars."""
        grammars: object = self.state.grammars
        assert isinstance(grammars, FakeGrammars)
        return grammars

    def post(self, path: str, body: Any, **headers: str) -> Any:
        """POST JSON; ``headers`` with underscores for dashes."""
        return self.http.post(path, json=body, headers={key.replace("_", "-"): value for key, value in headers.items()})

    def metric(self, name: str) -> float:
        """The value of one sample of /metrics, such as ``tgi_request_failure{err="dropped"}``."""
        for line in self.http.get("/metrics").text.splitlines():
            if line.startswith(name + " "):
                return float(line.rpartition(" ")[2])
        raise KeyError(name)


@functools.cache
def _idle_apps(_settings: ApiConfig) -> list[Litestar]:
    """Applications that no test uses at the moment: to make one takes longer than most tests do."""
    return []


@contextlib.contextmanager
def open_api(state: AppState) -> Iterator[Api]:
    """The application over ``state`` with a client."""
    idle = _idle_apps(state.config.api)
    app = idle.pop() if idle else create_app(state)
    # All that an application knows beside its settings.
    app.state.server = state
    with TestClient(app, raise_server_exceptions=False) as http:
        yield Api(state, http)
    idle.append(app)


def error_message(reply: Any) -> str:
    """The message of an error, which has the form of its route's API."""
    body = reply.json()
    path = reply.request.url.path
    assert body["error_type"]
    if path.startswith("/v1/messages"):
        assert list(body) == ["type", "error", "error_type", "request_id"]
        assert list(body["error"]) == ["type", "message"]
        return str(body["error"]["message"])
    assert list(body) == ["error", "error_type"]
    if path.startswith("/v1/"):
        assert list(body["error"]) == ["message", "type", "param", "code"]
        return str(body["error"]["message"])
    return str(body["error"])


def events(text: str) -> list[Any]:
    """The data of a stream's events: parsed JSON, or the text of what is not JSON, such as [DONE]."""
    found = []
    for block in text.split("\n\n"):
        if block.startswith(":") or not block:
            continue
        assert block.startswith("data: "), block
        data = block.removeprefix("data: ")
        found.append(data if data.startswith("[") else json.loads(data))
    return found


def named_events(text: str) -> list[Any]:
    """The data of a stream's events, each framed as ``event: <its type>`` and ``data: <its JSON>``."""
    assert text.endswith("\n\n")
    found = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


class LiveServer:
    """The application on a real socket, in a thread with its own event loop.

    Attributes:
        port: where it listens.
        loop: its event loop.
    """

    def __init__(self, state: AppState) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._server = uvicorn.Server(
            uvicorn.Config(
                create_app(state),
                http="httptools",
                lifespan="off",
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=1,
            )
        )
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),))

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        await self._server.serve(sockets=[self._listener])

    def __enter__(self) -> LiveServer:
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive()
            threading.Event().wait(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._listener.close()

    def connect(self) -> socket.socket:
        """A new connection."""
        connection = socket.create_connection(("127.0.0.1", self.port))
        connection.settimeout(10)
        return connection

    def post(self, path: str, body: Any) -> socket.socket:
        """A new connection over which a POST was sent."""
        content = json.dumps(body).encode()
        lines = ("Host: x", "Content-Type: application/json", f"Content-Length: {len(content)}")
        connection = self.connect()
        connection.sendall("\r\n".join((f"POST {path} HTTP/1.1", *lines, "", "")).encode() + content)
        return connection


def read_until(connection: socket.socket, end: bytes) -> bytes:
    """Everything up to the piece that brings ``end``: a reply may come in any number of pieces."""
    received = b""
    while end not in received:
        piece = connection.recv(65536)
        assert piece, f"the connection ended after {received!r}"
        received += piece
    return received


def wait_until(condition: Any, timeout_s: float = 5.0) -> None:
    """Wait for ``condition()`` to hold."""
    for _ in range(int(timeout_s / 0.01)):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("the condition did not come true in time")
