"""Whether the chosen backend does what was asked of it, and over how many devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tgi_api.cli.arguments import BackendValue
from tgi_api.cli.settings import ServeSettings
from tgi_core.contract import Backend, Capabilities, ShapeMode
from tgi_core.engine.attention import AUTO, check_attention_name
from tgi_core.errors import ExitCode, StartupError
from tgi_core.plugins import ask_capabilities, find_devices


def check_backend(backend: Backend, settings: ServeSettings, given: Sequence[BackendValue]) -> list[StartupError]:
    """Everything that the backend has not, each with what it has; empty when all is well.

    Args:
        backend: the chosen one.
        settings: what was asked for.
        given: options of backends, of others too.
    """
    refusals = list(_check_options(backend, given))
    # What is left to the engine is not looked at: asking for capabilities here may load the device's libraries.
    if _asks(settings):
        try:
            capabilities = ask_capabilities(backend)
            refusals += _check_capabilities(backend, capabilities, settings)
            if settings.attention != AUTO:
                check_attention_name(backend, settings.attention)
        except StartupError as error:
            refusals.append(error)
    return refusals


def choose_world_size(backend: Backend, settings: ServeSettings) -> int:
    """Devices to split the model over; as in TGI all there are where it is to be split and nobody says how far."""
    if settings.num_shard is not None:
        return settings.num_shard
    return len(find_devices(backend).devices) if settings.sharded else 1


def _asks(settings: ServeSettings) -> bool:
    return (
        settings.dtype != "auto"
        or settings.block_size is not None
        or settings.attention != AUTO
        or settings.strict_shapes
        or settings.sharded is True
        or (settings.num_shard or 1) > 1
    )


def _check_options(backend: Backend, given: Sequence[BackendValue]) -> Iterator[StartupError]:
    name = backend.info.name
    for option in given:
        if option.backend != name:
            yield StartupError(
                f"{option.source}={option.value} is an option of backend `{option.backend}`, and `{name}` is chosen.",
                f"Leave it out, or use --backend {option.backend}.",
                ExitCode.USAGE,
            )


def _check_capabilities(
    backend: Backend, capabilities: Capabilities, settings: ServeSettings
) -> Iterator[StartupError]:
    name = backend.info.name
    if settings.dtype not in ("auto", *capabilities.dtypes):
        yield StartupError(
            f"Backend `{name}` does not compute in {settings.dtype}.",
            f"Use --dtype {' or '.join(capabilities.dtypes)}, or leave it out.",
            ExitCode.BACKEND,
        )
    block_sizes = capabilities.block_sizes
    if settings.block_size is not None and settings.block_size not in block_sizes:
        yield StartupError(
            f"Backend `{name}` does not take KV blocks of {settings.block_size} tokens.",
            f"Use --block-size {' or '.join(map(str, block_sizes))}, or leave it out.",
            ExitCode.BACKEND,
        )
    if settings.strict_shapes and capabilities.shape_mode is not ShapeMode.BUCKETED:
        yield StartupError(
            f"--strict-shapes is for backends that compile static shapes, which `{name}` does not.",
            "Leave it out.",
            ExitCode.BACKEND,
        )
    yield from _check_world_size(backend, capabilities.max_world_size, settings)


def _check_world_size(backend: Backend, most: int, settings: ServeSettings) -> Iterator[StartupError]:
    name, wanted = backend.info.name, choose_world_size(backend, settings)
    if most == 1 and (wanted > 1 or settings.sharded):
        yield StartupError(
            f"Backend `{name}` cannot split a model: it runs on 1 device.",
            "Leave --num-shard and --sharded out, and choose a model that fits one device.",
            ExitCode.BACKEND,
        )
    elif wanted > most:
        yield StartupError(
            f"Backend `{name}` splits a model over at most {most} devices, and {wanted} are asked for.",
            f"Use --num-shard {most} or less.",
            ExitCode.BACKEND,
        )
    elif settings.sharded and wanted == 1:
        yield StartupError(
            f"--sharded true needs several devices, and backend `{name}` finds one.", "Leave it out.", ExitCode.BACKEND
        )
