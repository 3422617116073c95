"""A third party's plugin as an installed distribution: a folder on sys.path with code and entry points."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import dedent


def write_distribution(folder: Path, name: str, module: str, source: str) -> Path:
    """Lay out what ``pip install`` would leave: one module and a dist-info with an entry point of our group."""
    folder.mkdir(parents=True, exist_ok=True)
    # Another test may have imported one of this name.
    sys.modules.pop(module, None)
    (folder / f"{module}.py").write_text(dedent(source))
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[tgi_serve]\n{module} = {module}\n")
    return folder


MINIMAL_BACKEND = '''
"""A backend with the least a device needs: info, probe, capabilities and a device."""
import resource

from tgi_core.contract import Backend, BackendInfo, Capabilities, Device, DeviceInfo, DeviceMemory, Probe
from tgi_core.hookspecs import hookimpl

GIB = 2**30


class MinimalDevice(Device):
    @property
    def torch_device(self):
        import torch

        return torch.device("cpu")

    def memory(self):
        held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return DeviceMemory(free_bytes=2 * GIB, total_bytes=4 * GIB, peak_bytes=held)

    def synchronize(self):
        pass


class MinimalBackend(Backend):
    @property
    def info(self):
        return BackendInfo(name="minimal", title="a third party's device", priority=-1)

    def probe(self):
        return Probe(devices=(DeviceInfo(0, "minimal device", 4 * GIB),))

    def capabilities(self):
        return Capabilities()

    def open_device(self, local_index):
        return MinimalDevice()


@hookimpl
def tgi_backends():
    return [MinimalBackend()]
'''
