"""One decoder that reads a spec, and the architectures that fill it."""

from tgi_core.models.decoder import Decoder
from tgi_core.models.families import ARCHITECTURES
from tgi_core.models.hf_config import HFConfig
from tgi_core.models.loader import load_decoder_weights
from tgi_core.models.sources import CheckpointSource, RandomSource, WeightSource
from tgi_core.models.spec import Architecture, ArchitectureSpec
from tgi_core.models.step import KVView, Step, StepRows

__all__ = [
    "ARCHITECTURES",
    "Architecture",
    "ArchitectureSpec",
    "CheckpointSource",
    "Decoder",
    "HFConfig",
    "KVView",
    "RandomSource",
    "Step",
    "StepRows",
    "WeightSource",
    "load_decoder_weights",
]
