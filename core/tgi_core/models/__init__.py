"""One decoder that reads a spec, the architectures that fill it, and modules for what it cannot compute."""

from tgi_core.contract.states import StepRows
from tgi_core.models.decoder import Decoder
from tgi_core.models.families import ARCHITECTURES
from tgi_core.models.family import Architecture, ModuleArchitecture
from tgi_core.models.hf_config import HFConfig
from tgi_core.models.loader import load_decoder_weights
from tgi_core.models.modules import MODULES
from tgi_core.models.sources import CheckpointSource, RandomSource, WeightSource
from tgi_core.models.spec import ArchitectureSpec
from tgi_core.models.step import KVView, Step

__all__ = [
    "ARCHITECTURES",
    "MODULES",
    "Architecture",
    "ArchitectureSpec",
    "CheckpointSource",
    "Decoder",
    "HFConfig",
    "KVView",
    "ModuleArchitecture",
    "RandomSource",
    "Step",
    "StepRows",
    "WeightSource",
    "load_decoder_weights",
]
