"""With this folder on PYTHONPATH every Python process sees the fake SDK, and a machine with one Inferentia 2."""

from pathlib import Path

from msgspec.structs import replace

from tgi_core.contract import BackendInfo
from tgi_neuron import probe
from tgi_neuron.backend import NeuronBackend


def _simulated(backend: NeuronBackend) -> BackendInfo:
    return replace(_INFO(backend), simulated=True)


_INFO = NeuronBackend.info.fget
# What works here is not verified on hardware.
NeuronBackend.info = property(_simulated)
probe.ROOT = Path(__file__).with_name("machine")
