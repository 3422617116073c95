"""Start the server: check everything, bind the port, find the model, then let the supervisor run the processes."""

from __future__ import annotations

import logging
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tgi_api.cli.arguments import Arguments
from tgi_api.cli.backend_choice import check_backend, choose_world_size
from tgi_api.cli.display import Display, make_display
from tgi_api.cli.environment import environment_lines
from tgi_api.cli.listener import allow_successor, bind_port
from tgi_api.cli.model import find_model
from tgi_api.cli.settings import ServeSettings, check_settings, make_config
from tgi_api.cli.summary import make_summary
from tgi_core.engine.attention import AUTO
from tgi_core.errors import ExitCode, StartupError
from tgi_core.logs import configure_logging
from tgi_core.plugins import Plugins

if TYPE_CHECKING:
    from tgi_core.config import EngineInfo, ServerConfig
    from tgi_core.contract import Backend
    from tgi_core.engine.supervisor import Event

logger = logging.getLogger("tgi_api.cli")


def serve(arguments: Arguments) -> int:
    """Run a server until it is stopped; returns the exit code."""
    settings = ServeSettings(**cast("dict[str, Any]", arguments.values))
    configure_logging(json_output=settings.json_output, level=settings.log_level)
    display = make_display(json_output=settings.json_output)
    try:
        return _start(arguments, settings, display)
    except StartupError as error:
        display.refuse([error])
        return error.exit_code
    finally:
        display.close()


def _start(arguments: Arguments, settings: ServeSettings, display: Display) -> int:
    backend = begin_start(arguments, settings, display, Plugins.discover())
    if isinstance(backend, ExitCode):
        return backend
    with bind_port(settings.hostname, settings.port) as listener:
        model_dir = find_served_model(settings, display)
        config = make_config(
            settings,
            backend=backend.info.name,
            model_dir=model_dir,
            port=listener.getsockname()[1],
            world_size=choose_world_size(backend, settings),
            backend_options=arguments.backend_options,
        )
        from tgi_api.server import run_api
        from tgi_core.engine.supervisor import Supervisor

        supervisor = Supervisor(
            config,
            listener,
            engine_environment=backend.process_environment(),
            api_target=run_api,
            events=StartView(config, listener, display),
        )
        return supervisor.run()


def begin_start(
    arguments: Arguments, settings: ServeSettings, display: Display, plugins: Plugins
) -> Backend | ExitCode:
    """What a start does before it touches port and model; the exit code if it is refused, all refusals told."""
    for warning in arguments.warnings:
        display.warn(warning)
    if settings.env:
        for line in environment_lines(plugins, arguments.shown):
            display.info(line)
    backend, refusals = check_start(arguments, settings, plugins)
    if backend is None or refusals:
        display.refuse(refusals)
        return refusals[0].exit_code
    if settings.backend == AUTO:
        display.info(plugins.explain_auto(backend))
    return backend


def check_start(
    arguments: Arguments, settings: ServeSettings, plugins: Plugins
) -> tuple[Backend | None, list[StartupError]]:
    """The backend to run on, and everything that keeps a server from starting; without a backend that says why."""
    backend, refusals = None, [*arguments.refusals, *check_settings(settings)]
    try:
        backend = plugins.choose_backend(settings.backend)
        refusals += check_backend(backend, settings, arguments.backend_values)
    except StartupError as error:
        refusals.append(error)
    for choose, name in (
        (plugins.choose_grammar_engine, settings.used_grammar_engine),
        (plugins.choose_tool_parser, _chosen(settings.tool_call_parser)),
        (plugins.choose_reasoning_parser, _chosen(settings.reasoning_parser)),
    ):
        try:
            if name is not None:
                choose(name)
        except StartupError as error:
            refusals.append(error)
    return backend, refusals


def _chosen(name: str) -> str | None:
    """The name of a parser, None where it is not one."""
    return None if name in ("auto", "none") else name


def find_served_model(settings: ServeSettings, display: Display, *, weights: bool = True) -> Path:
    """The local folder of the model that the settings name; without ``weights`` it may lack them.

    Raises:
        StartupError: it cannot be had.
    """
    override, hub_cache_dir = settings.weights_cache_override, settings.huggingface_hub_cache
    if override is not None and (settings.model_id is None or (override / "config.json").exists()):
        return find_model(str(override), None, None, display, weights=weights)
    return find_model(
        settings.model_id or "", settings.revision, hub_cache_dir, display, weights=weights, weights_dir=override
    )


class StartView:
    """Shows what the supervisor reports: start-up and its summary on the display, what comes later as log lines."""

    def __init__(self, config: ServerConfig, listener: socket.socket, display: Display) -> None:
        self._config = config
        self._listener = listener
        self._display = display
        self._info: EngineInfo | None = None
        self._serving = False

    def __call__(self, event: Event) -> None:
        """Show one event."""
        from tgi_core.engine import supervisor

        match event:
            case supervisor.EngineLoading(done_bytes, total_bytes) if not self._serving:
                self._display.progress("Loading weights", done_bytes, total_bytes)
            case supervisor.EngineReady(info):
                self._info = info
                allow_successor(self._listener)
                if self._serving:
                    logger.info("A new engine takes requests.")
            case supervisor.ServerReady():
                self._show_summary()
            case supervisor.EngineLost(reason, restart_in_s):
                logger.error("The engine is lost: %s. A new one starts in %.1f s.", reason, restart_in_s)
            case supervisor.Stopping(reason):
                self._display.close()
                logger.info("The server stops: %s.", reason)

    def _show_summary(self) -> None:
        if self._info is not None and not self._serving:
            self._serving = True
            self._display.summary(make_summary(self._config, self._info))
