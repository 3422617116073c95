"""What ``--env`` prints: versions, devices and the arguments, for reports of a problem."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from tgi_core import __version__
from tgi_core.plugins import Plugins, find_devices

_DISTRIBUTIONS = ("torch", "transformers", "tokenizers", "huggingface_hub", "safetensors", "litestar", "uvicorn")


def environment_lines(plugins: Plugins, shown_arguments: Sequence[str]) -> list[str]:
    """One line a fact; probes every backend, which may take seconds.

    Args:
        plugins: the loaded plugins.
        shown_arguments: the given arguments as text, secrets hidden.
    """
    lines = [
        f"tgi-serve {__version__}",
        f"Python {platform.python_version()} on {platform.platform()}",
        ", ".join(f"{name} {_installed(name)}" for name in _DISTRIBUTIONS),
    ]
    for name, backend in sorted(plugins.backends().items()):
        probe = find_devices(backend)
        found = ", ".join(device.name for device in probe.devices)
        lines.append(f"Backend {name}: {found or f'no device: {probe.reason}'}")
    for failure in plugins.failures:
        lines.append(f"Plugin {failure.name} of {failure.distribution} failed to load: {failure.reason}")
    lines.append(f"Arguments: {' '.join(shown_arguments) or 'none'}")
    return lines


def _installed(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"
