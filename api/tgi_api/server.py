"""The API process: builds what it can at once, listens when the first engine is up, drains when told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

import uvicorn

from tgi_api.app import create_app, require_free_routes
from tgi_api.state import AppState
from tgi_core.config import ServerConfig
from tgi_core.engine.client import EngineClient
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
from tgi_core.errors import StartupError, TemplateError
from tgi_core.logs import configure_logging
from tgi_core.model_folder import ModelFolder
from tgi_core.plugins import Plugins
from tgi_core.requests import TextTokenizer
from tgi_core.requests.chat_format import ChatFormats, make_formats
from tgi_core.requests.tokenizer_python import describe_python, open_tokenizer
from tgi_core.sampling.defaults import SamplingDefaults
from tgi_core.sampling.grammar import Vocabulary
from tgi_core.sampling.grammar.checker import GrammarChecker

logger = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S = 5
"""For the last bytes of replies, once no generation runs any more."""

_IDLE_CONNECTION_S = 75
"""Longer than the idle time of common proxies, so that they close a connection before the server does."""


def run_api(config: ServerConfig, listener: socket.socket, control: Connection) -> None:
    """The API process's entry point; returns when the server has shut down.

    Args:
        config: the server's configuration.
        listener: a bound socket that does not listen yet, so that connections are refused until an engine is up.
        control: pipe to the supervisor.
    """
    # A terminal sends it to the whole process group; the supervisor decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _keep_from_children()
    configure_logging(json_output=config.api.json_output, level=config.api.log_level)
    try:
        require_free_routes(config.api)
        folder = ModelFolder(
            config.model.model_dir,
            tokenizer_config_path=config.model.tokenizer_config_path,
            chat_template=config.model.chat_template,
        )
        tokenizer = open_tokenizer(
            folder, workers=config.api.validation_workers, trust_remote_code=config.model.trust_remote_code
        )
        chat = load_chat(folder, config.api.tool_call_parser, config.api.reasoning_parser)
        grammars = make_checker(config.engine.grammar_engine, folder)
        defaults = find_defaults(config.api.generation_config, folder)
    except StartupError as error:
        send_control(control, Refused(error.cause, error.fix, error.exit_code))
        sys.exit(error.exit_code)
    if note := describe_python(tokenizer):
        logger.warning("%s.", note)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(ApiProcess(config, tokenizer, chat, listener, control, grammars=grammars, defaults=defaults).run())


def _keep_from_children() -> None:
    """Let no child inherit the port, nor the pipe by whose end the supervisor notices that this process has died.

    uvloop gives children whatever is inheritable, and one that hangs would hold on to it.
    """
    for descriptor in map(int, os.listdir("/dev/fd")):
        # The folder that is listed has one too, which is closed by now.
        with contextlib.suppress(OSError):
            os.set_inheritable(descriptor, descriptor <= 2)


def load_chat(
    folder: ModelFolder, tool_call_parser: str = "auto", reasoning_parser: str = "auto"
) -> ChatFormats | TemplateError:
    """How the model talks, or what to tell who wants to chat with it: everything else works without a template.

    ``tool_call_parser``, ``reasoning_parser``: as ``ApiConfig`` has them.

    Raises:
        StartupError: a file of the folder is malformed, or a parser is asked for that does not exist.
    """
    if not folder.chat_templates:
        return TemplateError("the model has no chat template; give one with --chat-template")
    plugins = Plugins.discover()
    try:
        return make_formats(
            folder.chat_templates,
            folder.special_tokens,
            folder.model_type,
            tool_parsers=plugins.tool_parsers(),
            reasoning_parsers=plugins.reasoning_parsers() if reasoning_parser == "auto" else (),
            tool_parser=None if tool_call_parser == "auto" else plugins.choose_tool_parser(tool_call_parser),
            reasoning_parser=None
            if reasoning_parser in ("auto", "none")
            else plugins.choose_reasoning_parser(reasoning_parser),
        )
    except TemplateError as error:
        logger.warning("Chat is not available. %s", error)
        return error


def make_checker(engine: str | None, folder: ModelFolder) -> GrammarChecker | None:
    """What tests constraints on the output with ``engine``; None without one, or without a fast tokenizer.

    Starts nothing yet.
    """
    if engine is None or not folder.has_tokenizer:
        return None
    eos_token_ids = tuple(sorted(folder.eos_token_ids))
    return GrammarChecker(engine, Vocabulary(folder.tokenizer_file, folder.vocab_size, eos_token_ids))


def find_defaults(generation_config: str, folder: ModelFolder) -> SamplingDefaults:
    """What holds for parameters that a request does not name; ``generation_config`` as ``ApiConfig`` has it.

    Raises:
        StartupError: the model's ``generation_config.json`` is malformed.
    """
    return folder.sampling_defaults if generation_config == "auto" else SamplingDefaults()


class ApiProcess:
    """The life of an API process on its event loop."""

    def __init__(
        self,
        config: ServerConfig,
        tokenizer: TextTokenizer,
        chat: ChatFormats | TemplateError,
        listener: socket.socket,
        control: Connection,
        *,
        grammars: GrammarChecker | None,
        defaults: SamplingDefaults | None = None,
    ) -> None:
        self._config = config
        self._defaults = defaults
        self._tokenizer = tokenizer
        self._chat = chat
        self._grammars = grammars
        self._listener = listener
        self._control = control
        self._client = EngineClient()

    async def run(self) -> None:
        """Follow the supervisor's messages until it says Shutdown, or is gone."""
        loop = asyncio.get_running_loop()
        inbox: asyncio.Queue[Control | None] = asyncio.Queue()
        loop.add_reader(self._control.fileno(), self._read_control, inbox)
        # A service manager may signal every process of the group; it means the same as Shutdown.
        loop.add_signal_handler(signal.SIGTERM, inbox.put_nowait, Shutdown())
        try:
            if await self._first_engine(inbox):
                state = AppState(
                    self._config, self._client, self._tokenizer, self._chat, self._grammars, defaults=self._defaults
                )
                if self._defaults is not None and state.defaults != self._defaults:
                    logger.warning("Of generation_config.json only what the device supports is applied.")
                await self._serve(inbox, state)
        finally:
            loop.remove_reader(self._control.fileno())
            self._client.close()
            self._tokenizer.close()
            if self._grammars is not None:
                await self._grammars.close()

    def _read_control(self, inbox: asyncio.Queue[Control | None]) -> None:
        try:
            while self._control.poll():
                inbox.put_nowait(receive_control(self._control))
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(self._control.fileno())
            inbox.put_nowait(None)

    async def _first_engine(self, inbox: asyncio.Queue[Control | None]) -> bool:
        """Wait for an engine; False when the server is to end before there is one."""
        while True:
            message = await inbox.get()
            if message is None or isinstance(message, Shutdown):
                return False
            if isinstance(message, EngineUp):
                self._client.engine_up(message.address, message.info)
                return True

    async def _serve(self, inbox: asyncio.Queue[Control | None], state: AppState) -> None:
        server = _Server(
            uvicorn.Config(
                create_app(state),
                http="httptools",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=_IDLE_CONNECTION_S,
                timeout_graceful_shutdown=_CLOSE_TIMEOUT_S,
            ),
            on_listening=self._on_listening,
        )
        serving = asyncio.create_task(server.serve(sockets=[self._listener]))
        following = asyncio.create_task(self._follow(inbox, state))
        await asyncio.wait({serving, following}, return_when=asyncio.FIRST_COMPLETED)
        following.cancel()
        # Whatever still runs has nobody left to answer it: its clients are told before their connections close.
        self._client.close()
        server.should_exit = True
        await serving

    def _on_listening(self) -> None:
        # Everything made so far lives as long as the process; the collector need not look at it again.
        gc.collect()
        gc.freeze()
        send_control(self._control, ApiReady())

    async def _follow(self, inbox: asyncio.Queue[Control | None], state: AppState) -> None:
        """Keep the client's view of the engine true; returns when the server has to close."""
        draining: asyncio.Task[None] | None = None
        while (message := await inbox.get()) is not None:
            match message:
                case EngineUp(address, info):
                    self._client.engine_up(address, info)
                case EngineSuspect(reason):
                    self._client.engine_suspect(reason)
                case EngineRecovered():
                    self._client.engine_recovered()
                case EngineDown(reason):
                    if self._client.in_flight:
                        state.metrics.observe_engine_lost()
                    self._client.engine_down(reason)
                case Shutdown(at_once=True):
                    if draining is not None:
                        draining.cancel()
                    return
                case Shutdown() if draining is None:
                    draining = asyncio.create_task(self._drain(inbox, state))

    async def _drain(self, inbox: asyncio.Queue[Control | None], state: AppState) -> None:
        """Refuse new requests and wait for the running ones; after the time allowed they fail."""
        places = (state.permits, state.tokenizations)
        for permits in places:
            permits.close()
        with contextlib.suppress(TimeoutError):
            idle = asyncio.gather(*(permits.idle() for permits in places))
            await asyncio.wait_for(idle, self._config.api.graceful_termination_timeout_s)
        self._client.close()
        inbox.put_nowait(None)


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, and with a call when it listens."""

    def __init__(self, config: uvicorn.Config, on_listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_listening = on_listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._on_listening()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
