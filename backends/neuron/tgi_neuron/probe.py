"""Which NeuronCores can be used, or what stands in the way and what would help. Imports no SDK."""

from __future__ import annotations

import os
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tgi_core.contract import DeviceInfo, Probe

ROOT = Path("/")
"""Where the driver's files lie."""

PYTHON = sys.version_info[:2]
"""What optimum-neuron must be able to run on."""

_DEVICE = re.compile(r"neuron\d+")
_GIB = 1 << 30
_FAMILIES = {"inf2": (2, 16 * _GIB), "trn1": (2, 16 * _GIB), "trn1n": (2, 16 * _GIB), "trn2": (4, 24 * _GIB)}
"""NeuronCores of a device and the memory of each. The eight of a Trainium 2 work in pairs."""

_INSTALL = 'Install it with Python 3.11: pip install "tgi-serve[neuron]".'
_INSTALL_SDK = (
    "Install torch-neuronx, neuronx-cc and neuronx-distributed from AWS Neuron's own package index "
    "(https://awsdocs-neuron.readthedocs-hosted.com); what PyPI has under these names is empty."
)
_NEEDED = (
    ("optimum-neuron", "0.4.", _INSTALL),
    ("torch-neuronx", "2.", _INSTALL_SDK),
    ("neuronx-cc", "2.", _INSTALL_SDK),
)


def probe_cores() -> Probe:
    """Look for NeuronCores and for the SDK. Never raises."""
    devices = sum(_DEVICE.fullmatch(path.name) is not None for path in (ROOT / "dev").glob("neuron*"))
    if not devices:
        return _no_device()
    product = ROOT / "sys/devices/virtual/dmi/id/product_name"
    instance = product.read_text().strip() if product.is_file() else "an unknown machine"
    if (family := instance.partition(".")[0]) not in _FAMILIES:
        fix = f"It runs on {', '.join(_FAMILIES)}."
        return Probe(reason=f"optimum-neuron does not know the Neuron devices of {instance}", fix=fix)
    of_device, core_bytes = _FAMILIES[family]
    try:
        cores = _count_visible(devices * of_device)
    except ValueError:
        cores = 0
    if cores < 1:
        fix = "Set NEURON_RT_VISIBLE_CORES to a core, such as 4, or to a range, such as 0-7, or unset it."
        return Probe(reason="NEURON_RT_NUM_CORES or NEURON_RT_VISIBLE_CORES leaves no core", fix=fix)
    device = f"NeuronCore ({instance})"
    return _missing_sdk() or Probe(devices=tuple(DeviceInfo(index, device, core_bytes) for index in range(cores)))


def _no_device() -> Probe:
    if any((ROOT / "sys/class/neuron_device").glob("neuron*")):
        fix = "Start the container with --device /dev/neuron0, and so on for each of them."
        return Probe(reason="the Neuron devices of this machine are hidden from this container", fix=fix)
    fix = "Use an Inf2, Trn1 or Trn2 instance, with the driver aws-neuronx-dkms."
    return Probe(reason="there is no Neuron device on this machine, or its driver is not loaded", fix=fix)


def _count_visible(cores: int) -> int:
    """Cores that the environment leaves, as optimum-neuron counts them."""
    cores = min(cores, int(os.environ.get("NEURON_RT_NUM_CORES", cores)))
    visible = os.environ.get("NEURON_RT_VISIBLE_CORES")
    if visible is None:
        return cores
    first, _, last = visible.partition("-")
    return min(cores, int(last or first) - int(first) + 1)


def _missing_sdk() -> Probe | None:
    if PYTHON >= (3, 12):
        reason = (
            f"optimum-neuron has no release for Python {PYTHON[0]}.{PYTHON[1]}, so that the extra [neuron] is empty"
        )
        return Probe(reason=reason, fix=_INSTALL)
    for name, series, fix in _NEEDED:
        found = _installed(name)
        if found is None or not found.startswith(series):
            return Probe(reason=f"{name} {series}x is needed, and {found or 'none'} is installed", fix=fix)
    return None


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
