"""Loads a plugin in a fresh interpreter from which modules are missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from enum import StrEnum
from importlib.metadata import EntryPoint, entry_points

from tgi_core.contract import Backend
from tgi_core.hookspecs import PROJECT_NAME
from tgi_core.testing.conformance.comparison import ConformanceError

_TIMEOUT_S = 120


class Absence(StrEnum):
    """What an interpreter lacks. The standard library, tgi-serve's contract and the plugin itself are always there."""

    NOTHING = "all that is installed"
    NOT_INSTALLED = "torch and every SDK missing"
    BROKEN = "torch and every SDK broken"


_SCRIPT = """
import importlib, importlib.abc, importlib.machinery, json, sys

task = json.loads(sys.argv[1])


class Loader(importlib.abc.Loader):
    def create_module(self, spec):
        raise OSError(f"{spec.name}: cannot open shared object file")

    def exec_module(self, module):
        raise AssertionError


class Finder(importlib.abc.MetaPathFinder):
    def __init__(self, finders):
        self.finders = finders

    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in task["present"]:
            return importlib.machinery.ModuleSpec(name, Loader()) if task["broken"] else None
        for finder in self.finders:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                return spec
        return None


if task["present"] is not None:
    sys.meta_path[:] = [Finder(list(sys.meta_path))]
step = "importing the plugin"
try:
    plugin = importlib.import_module(task["module"])
    for name in filter(None, task["attribute"].split(".")):
        plugin = getattr(plugin, name)
    if "torch" in sys.modules:
        raise AssertionError("it imports torch, which it may only when a device is opened or probed")
    step = "tgi_backends()"
    backend = next(found for found in plugin.tgi_backends() if found.info.name == task["name"])
    step = "probe()"
    probe = backend.probe()
    if not probe.devices and not (probe.reason and probe.fix):
        raise AssertionError("there is no device, and no reason or no fix is given")
except BaseException as error:
    sys.exit(f"{step}: {type(error).__name__}: {error}")
"""


def probe_apart(backend: Backend, absence: Absence) -> None:
    """Import the plugin of ``backend`` in a fresh interpreter, make its backends and probe.

    Raises:
        ConformanceError: one of these raises, importing loads torch, or no device is found without a reason.
    """
    point = _entry_point_of(backend)
    present = None
    if absence is not Absence.NOTHING:
        present = sorted({"tgi_core", "msgspec", "pluggy", *_packages_of(backend, point)})
    task = {
        "name": backend.info.name,
        "module": point.module,
        "attribute": point.attr or "",
        "present": present,
        "broken": absence is Absence.BROKEN,
    }
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ran = subprocess.run(
        [sys.executable, "-c", _SCRIPT, json.dumps(task)],
        check=False,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        env=environment,
    )
    if ran.returncode:
        raise ConformanceError(f"With {absence.value}: {ran.stderr.strip()}")


def _entry_point_of(backend: Backend) -> EntryPoint:
    """The plugin that offers it."""
    for point in entry_points(group=PROJECT_NAME):
        try:
            offered: Iterable[Backend] = getattr(point.load(), "tgi_backends", tuple)()
        except Exception:  # a broken plugin of somebody else
            continue
        if any(found.info.name == backend.info.name for found in offered):
            return point
    raise ConformanceError(f"No entry point of the group {PROJECT_NAME} offers `{backend.info.name}`.")


def _packages_of(backend: Backend, point: EntryPoint) -> set[str]:
    """The plugin's own modules: its entry point's, its class's, and those that its distribution brings."""
    names = {point.module, type(backend).__module__}
    if point.dist is not None:
        names |= set((point.dist.read_text("top_level.txt") or "").split())
    return {name.partition(".")[0] for name in names}
