"""The fake SDK inside of a test's process: importable while a test runs, and gone afterwards."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tgi_gaudi.backend import GaudiBackend

FAKE_SDK = Path(__file__).with_name("fake_sdk")
"""To be put first on PYTHONPATH, for a process that is to have a card."""

_MODULES = ("fake_hpu", "habana_frameworks", "pyhlml")


@contextmanager
def fake_sdk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Let the SDK be installed; gives its card, ``fake_hpu.machine.MACHINE``."""
    for name, module in _load().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(torch, "hpu", sys.modules["torch.hpu"], raising=False)
    machine = sys.modules["fake_hpu.machine"].MACHINE  # type: ignore[attr-defined]
    machine.mark_step()
    machine.take_sent()
    yield machine
    machine.recording = None


@cache
def _load() -> dict[str, ModuleType]:
    """The SDK's modules. Torch takes what they register once."""
    sys.path.insert(0, str(FAKE_SDK))
    before = dict(os.environ)
    os.environ.update(GaudiBackend().process_environment())
    try:
        importlib.import_module("habana_frameworks.torch")
        for name in (
            "fake_hpu.tensor",
            "habana_frameworks.torch.hpex.kernels",
            "habana_frameworks.torch.hpex.normalization",
        ):
            importlib.import_module(name)
        importlib.import_module("pyhlml")
    finally:
        sys.path.remove(str(FAKE_SDK))
        os.environ.clear()
        os.environ.update(before)
    found = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in _MODULES}
    found["torch.hpu"] = sys.modules["torch.hpu"]
    for name in found:
        del sys.modules[name]
    del torch.hpu  # type: ignore[attr-defined]
    return found
