"""Opens what a model's weights come from."""

from __future__ import annotations

from pathlib import Path

from tgi_core.models.family import ModelFamily
from tgi_core.models.hf_config import HFConfig
from tgi_core.models.model import LoadOptions
from tgi_core.models.quantization import find_quantization
from tgi_core.models.sources import CheckpointSource, RandomSource, WeightSource
from tgi_core.weights.checkpoint import Checkpoint
from tgi_core.weights.dequantized import DequantizedCheckpoint


def open_weights(model_dir: Path, family: ModelFamily, options: LoadOptions) -> WeightSource:
    """The checkpoint in ``model_dir``, quantized weights dequantized, or random numbers where the options ask for them.

    Raises:
        StartupError: there is no checkpoint, it cannot be read, or it is quantized in a way that is not known.
    """
    if options.source is not None:
        return options.source
    if options.load_format == "dummy":
        return RandomSource(options.dtype, options.device)
    stored = Checkpoint.open(model_dir)
    quantization = find_quantization(model_dir, HFConfig.read(model_dir))
    if quantization is None:
        return CheckpointSource(stored, family, options.dtype, options.device, options.progress)
    checkpoint = DequantizedCheckpoint(stored, quantization, options.dtype)
    return CheckpointSource(checkpoint, family, options.dtype, options.device, options.progress, notes=checkpoint.notes)
