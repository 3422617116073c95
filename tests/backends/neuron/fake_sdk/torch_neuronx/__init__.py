"""A fake runtime; the real one is loaded by optimum-neuron alone."""

__version__ = "2.8.0.2.10.16998"
