"""The plugin's entry point; imports neither torch nor the vendor's libraries."""

from __future__ import annotations

from collections.abc import Iterable

from tgi_core.contract import Backend
from tgi_core.hookspecs import hookimpl
from tgi_neuron.backend import NeuronBackend


@hookimpl
def tgi_backends() -> Iterable[Backend]:
    """The Neuron backend."""
    return [NeuronBackend()]
