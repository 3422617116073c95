"""Tiny models of every family: their configurations, and random checkpoints of them."""

from tgi_core.testing.conformance.models.checkpoint import write_checkpoint
from tgi_core.testing.conformance.models.configs import model_configs

__all__ = ["model_configs", "write_checkpoint"]
