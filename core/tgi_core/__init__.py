"""The hardware-agnostic core of tgi-serve: scheduling, sampling, models, weights and the contract with a backend."""

__version__ = "0.1.0"
