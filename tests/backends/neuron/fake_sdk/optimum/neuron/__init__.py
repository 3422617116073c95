"""A strict fake of optimum-neuron 0.4.5: its exact names and no others."""

from optimum.neuron.modeling import NeuronModelForCausalLM

__all__ = ["NeuronModelForCausalLM"]
