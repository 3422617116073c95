"""Which Gaudi cards can be used, or what stands in the way and what would help."""

from __future__ import annotations

import importlib
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from tgi_core.contract import DeviceInfo, Probe

CARDS = Path("/sys/class/accel")
"""Where Linux has a folder for each accelerator, whoever made it."""

_VENDOR = "0x1da3"
"""Habana Labs on the PCI bus."""

_INSTALL_SDK = (
    "Run tgi-serve in Intel's container image for Gaudi with PyTorch, or install habana-torch-plugin and the torch "
    'that belongs to it from Intel\'s package index; PyPI has neither, and "tgi-serve[gaudi]" alone is not enough.'
)


class Card(NamedTuple):
    """What the driver tells of a card; 0 bytes where it does not tell."""

    name: str
    memory_bytes: int


def probe_devices() -> Probe:
    """Look for cards. Never raises."""
    # A machine without a card is answered without loading torch.
    cards = _list_managed() or _list_driven()
    if not cards:
        return Probe(
            reason="there is no Gaudi card on this machine, or it is hidden from this container",
            fix="Install Intel's driver for Gaudi; a container needs --runtime=habana and HABANA_VISIBLE_DEVICES.",
        )
    try:
        # Only importing it tells the SDK from packages that bear its name; it does not take the card.
        importlib.import_module("habana_frameworks.torch")
        hpu = importlib.import_module("torch").hpu
        count = int(hpu.device_count()) if hpu.is_available() else 0
    except Exception as error:  # a library, driver or torch of another release raises anything
        return Probe(reason=f"the Gaudi SDK cannot be imported ({type(error).__name__}: {error})", fix=_INSTALL_SDK)
    if not count:
        return Probe(
            reason="the Gaudi SDK finds no card it can use",
            fix="Check hl-smi, HABANA_VISIBLE_MODULES, and that no other process holds the card.",
        )
    return Probe(
        devices=tuple(DeviceInfo(index, card.name, card.memory_bytes) for index, card in enumerate(cards[:count]))
    )


def _list_managed() -> list[Card]:
    """The cards that the management library finds."""
    try:
        import pyhlml

        # It prints where it finds no driver.
        with redirect_stdout(StringIO()):
            pyhlml.hlmlInit()
            handles = [pyhlml.hlmlDeviceGetHandleByIndex(index) for index in range(pyhlml.hlmlDeviceGetCount())]
            cards = [
                Card(pyhlml.hlmlDeviceGetName(handle).decode(), pyhlml.hlmlDeviceGetMemoryInfo(handle).total)
                for handle in handles
            ]
            pyhlml.hlmlShutdown()
    except Exception:  # it is not installed, or finds no driver, or is of another release
        return []
    return cards


def _list_driven() -> list[Card]:
    """The cards that Linux has a driver for."""
    try:
        vendors = [path.read_text().strip() for path in sorted(CARDS.glob("accel*/device/vendor"))]
    except OSError:
        return []
    return [Card("Gaudi", 0) for vendor in vendors if vendor == _VENDOR]
