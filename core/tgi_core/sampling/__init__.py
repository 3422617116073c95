"""Sampling: the parameters of a request and the counter-based random numbers."""

from tgi_core.sampling.params import SamplingParams, Tier

__all__ = ["SamplingParams", "Tier"]
