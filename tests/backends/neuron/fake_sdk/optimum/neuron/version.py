"""The version of optimum-neuron that this fake stands for."""

__version__ = "0.4.5"
