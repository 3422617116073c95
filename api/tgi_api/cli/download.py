"""``download-weights``: bring a model onto this machine, ready to be served without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec

from tgi_api.cli.arguments import Arguments
from tgi_api.cli.display import make_display
from tgi_api.cli.launcher_options import LAUNCHER_OPTIONS, LOG_LEVELS
from tgi_api.cli.model import find_model
from tgi_api.cli.options import Effect, Group, Option
from tgi_api.cli.values import boolean, choice
from tgi_core.errors import ExitCode, StartupError
from tgi_core.logs import configure_logging


class DownloadSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One field for each used option of the same name."""

    revision: str | None = None
    huggingface_hub_cache: Path | None = None
    json_output: bool = False
    logger_level: str = "info"


_SHARED = ("--revision", "--huggingface-hub-cache", "--json-output")

DOWNLOAD_OPTIONS: tuple[Option, ...] = (
    *(option for option in LAUNCHER_OPTIONS if option.flag in _SHARED),
    Option(
        flag="--trust-remote-code",
        env=("TRUST_REMOTE_CODE", "HF_MODEL_TRUST_REMOTE_CODE"),
        group=Group.IGNORED,
        read=boolean,
        effect=Effect.IGNORED,
        neutral=(False,),
        help="A download runs no code.",
        reason="A download runs no code.",
    ),
    Option(
        flag="--logger-level",
        env=("LOG_LEVEL",),
        metavar="LEVEL",
        group=Group.OPERATION,
        read=choice(*LOG_LEVELS),
        lenient_env=True,
        help=f"One of {', '.join(LOG_LEVELS)}",
    ),
    Option(
        flag="--extension",
        metavar="EXT",
        group=Group.REFUSED,
        effect=Effect.REFUSED,
        neutral=(".safetensors",),
        help="Extension of the weight files; .safetensors is fine",
        reason="Leave it out; other formats are converted to .safetensors.",
    ),
    Option(
        flag="--auto-convert",
        negatable=True,
        group=Group.REFUSED,
        read=boolean,
        effect=Effect.REFUSED,
        neutral=(True,),
        help="Convert other formats to .safetensors; on is fine",
        reason="Leave it out; weights in other formats cannot be served unconverted.",
    ),
    Option(
        flag="--merge-lora",
        group=Group.REFUSED,
        read=boolean,
        effect=Effect.REFUSED,
        neutral=(False,),
        help="Merge an adapter into its model",
        reason="Merge the adapter with its own library and name the merged model.",
    ),
)


def download_weights(arguments: Arguments, model_id: str) -> int:
    """Download or convert ``model_id`` and print where it lies; returns the exit code."""
    settings = DownloadSettings(**cast("dict[str, Any]", arguments.values))
    configure_logging(json_output=settings.json_output, level=settings.logger_level)
    display = make_display(json_output=settings.json_output)
    for warning in arguments.warnings:
        display.warn(warning)
    if arguments.refusals:
        display.refuse(arguments.refusals)
        return ExitCode.USAGE
    try:
        model_dir = find_model(model_id, settings.revision, settings.huggingface_hub_cache, display)
    except StartupError as error:
        display.refuse([error])
        return error.exit_code
    finally:
        display.close()
    display.info(f"{model_id} is ready in {model_dir}")
    return ExitCode.OK
