"""The command line: ``tgi-serve``, which also has the names of TGI's launcher and of its ``download-weights``."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from types import FrameType

import click

from tgi_api.cli.backend_options import list_backend_options
from tgi_api.cli.backends import BACKENDS_OPTIONS, BackendsSettings, backends
from tgi_api.cli.bench import BENCH_OPTIONS, BenchSettings, bench_engine
from tgi_api.cli.bench_http import BENCH_HTTP_OPTIONS, BenchHttpSettings, bench_http
from tgi_api.cli.bench_kernels import BENCH_KERNELS_OPTIONS, BenchKernelsSettings, bench_kernels
from tgi_api.cli.command import DefaultGroup, OptionCommand
from tgi_api.cli.display import print_refusals
from tgi_api.cli.download import DOWNLOAD_OPTIONS, DownloadSettings, download_weights
from tgi_api.cli.explain import EXPLAIN_OPTIONS, ExplainSettings, explain
from tgi_api.cli.launcher_options import LAUNCHER_OPTIONS
from tgi_api.cli.options import Option
from tgi_api.cli.quantize import QUANTIZE
from tgi_api.cli.serve import serve
from tgi_api.cli.settings import ServeSettings
from tgi_core import __version__
from tgi_core.errors import ExitCode, StartupError
from tgi_core.plugins import Plugins

INTERRUPTED = 128 + signal.SIGINT
"""Exit code after an interruption before the server was up, the shell's convention."""

EPILOG = """Every flag also reads an environment variable, its own name in capitals (--max-batch-size:
MAX_BATCH_SIZE) if the help shows no other in [BRACKETS]. A flag wins over a variable. Exit codes and details:
docs/cli.md."""


def make_root(backend_options: Sequence[Option]) -> click.Group:
    """The whole command line.

    Args:
        backend_options: those that backends add to a server's.
    """
    return click.version_option(__version__, prog_name="tgi-serve", message="%(prog)s %(version)s")(
        DefaultGroup(
            "tgi-serve",
            default=OptionCommand(
                "serve",
                options=(*LAUNCHER_OPTIONS, *backend_options),
                settings=ServeSettings,
                run=serve,
                help="Serve a language model over HTTP: TGI's API and OpenAI's.",
                epilog=EPILOG,
            ),
            others=[
                OptionCommand(
                    "explain",
                    options=(*EXPLAIN_OPTIONS, *backend_options),
                    settings=ExplainSettings,
                    run=explain,
                    help="Show what a server would run with, and why, without starting it.",
                ),
                OptionCommand(
                    "download-weights",
                    options=DOWNLOAD_OPTIONS,
                    settings=DownloadSettings,
                    run=download_weights,
                    positional=["MODEL_ID"],
                    help="Download a model, and convert it where needed, without serving it.",
                ),
                OptionCommand(
                    "backends",
                    options=BACKENDS_OPTIONS,
                    settings=BackendsSettings,
                    run=backends,
                    help="List the installed backends: devices, capabilities, and how far each has been verified.",
                ),
                QUANTIZE,
                click.Group(
                    "bench",
                    help="Measure an engine, a backend's operations, or a running server.",
                    commands=[
                        OptionCommand(
                            "engine",
                            options=BENCH_OPTIONS,
                            settings=BenchSettings,
                            run=bench_engine,
                            help="Token ids in and out, greedy, without HTTP, tokenizer, prefix cache and EOS.",
                        ),
                        OptionCommand(
                            "kernels",
                            options=BENCH_KERNELS_OPTIONS,
                            settings=BenchKernelsSettings,
                            run=bench_kernels,
                            help="A backend's operations one by one, with the shapes of a model's config.json.",
                        ),
                        OptionCommand(
                            "http",
                            options=BENCH_HTTP_OPTIONS,
                            settings=BenchHttpSettings,
                            run=bench_http,
                            help="Many streams against a running server: throughput and latencies.",
                        ),
                    ],
                ),
            ],
        )
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the console scripts; returns the exit code.

    Args:
        arguments: the command line without the program's name; None takes the process's.
    """
    # The supervisor takes this handler's place; until then, and as process 1 of a container where the default would be
    # to ignore the signal, a stop must end downloads and conversions too.
    signal.signal(signal.SIGTERM, _stop)
    try:
        result = make_root(list_backend_options(Plugins.discover())).main(arguments, standalone_mode=False)
    except click.ClickException as error:
        print_refusals([StartupError(error.format_message(), "See tgi-serve --help.", ExitCode.USAGE)])
        return ExitCode.USAGE
    except (KeyboardInterrupt, click.Abort):
        print("Interrupted.", file=sys.stderr)
        return INTERRUPTED
    return int(result or ExitCode.OK)


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + signal.SIGTERM)


__all__ = ["INTERRUPTED", "main", "make_root"]
