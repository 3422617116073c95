"""The Neuron backend."""
