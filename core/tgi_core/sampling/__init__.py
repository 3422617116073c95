"""Sampling: the parameters of a request, the rules that act on scores, and what they are made of."""

from tgi_core.sampling.params import MAX_LOGIT_BIASES, SamplingParams, Tier

__all__ = ["MAX_LOGIT_BIASES", "SamplingParams", "Tier"]
