"""The vendor's libraries, opened once and never assumed."""

from __future__ import annotations

from typing import Any, NamedTuple

from tgi_core.errors import ExitCode, StartupError


class Sdk(NamedTuple):
    """What is called of them, and what compiled models depend on.

    Attributes:
        model_class: ``optimum.neuron.NeuronModelForCausalLM``.
        compiler_version: of neuronx-cc.
        library_version: of optimum-neuron.
    """

    model_class: Any
    compiler_version: str
    library_version: str


def open_sdk() -> Sdk:
    """Import them.

    Raises:
        StartupError: they cannot be imported.
    """
    try:
        from optimum.neuron import NeuronModelForCausalLM
        from optimum.neuron.utils.version_utils import get_neuronxcc_version
        from optimum.neuron.version import __version__

        return Sdk(NeuronModelForCausalLM, get_neuronxcc_version(), __version__)
    except Exception as error:  # an SDK that does not fit its driver or its torch raises anything
        raise StartupError(
            f"The Neuron SDK cannot be imported: {type(error).__name__}: {error}",
            "Install optimum-neuron and the packages of AWS Neuron's index in versions that belong together.",
            ExitCode.BACKEND,
        ) from error
