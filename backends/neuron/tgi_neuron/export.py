"""Compiles a model once and keeps the result: the second start loads it."""

from __future__ import annotations

import logging
import os
import shutil
import uuid
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

from tgi_core.cache_dir import default_cache_dir
from tgi_core.errors import ExitCode, StartupError
from tgi_neuron.artefact import Wanted, is_artefact
from tgi_neuron.sdk import Sdk

logger = logging.getLogger(__name__)

_READ = ("*.json", "*.safetensors")
"""Files that a compiled model is made from; a change of one makes another."""


def exported_model(wanted: Wanted, sdk: Sdk) -> Path:
    """The folder of the model compiled for these limits, from the cache or made now, which takes minutes.

    Raises:
        StartupError: optimum-neuron does not compile the model, or not so.
    """
    folder = default_cache_dir() / "neuron" / _key(wanted, sdk)
    if is_artefact(folder):
        return folder
    config = _neuron_config(wanted, sdk)
    logger.info("The model is compiled for Neuron into %s: this takes minutes, once.", folder)
    # A folder that is there is whole.
    unfinished = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}")
    try:
        model = sdk.model_class.export(str(wanted.spec.model_dir), config, load_weights=False)
        model.save_pretrained(str(unfinished))
        if not is_artefact(folder):
            os.replace(unfinished, folder)
    except Exception as error:  # whatever the compiler and what drives it raise
        raise StartupError(
            f"The model could not be compiled for Neuron: {type(error).__name__}: {error}",
            "Try a smaller --max-batch-size or --max-total-tokens, or a larger --num-shard.",
            ExitCode.BACKEND,
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _neuron_config(wanted: Wanted, sdk: Sdk) -> Any:
    """optimum-neuron's ``NxDNeuronConfig`` for the model, with its types and its sampling as they are wanted."""
    spec, limits = wanted.spec, wanted.limits
    try:
        config = sdk.model_class.get_neuron_config(
            str(spec.model_dir),
            batch_size=limits.max_slots,
            sequence_length=limits.max_total_tokens,
            tensor_parallel_size=spec.world_size,
        )
    except (KeyError, ValueError) as error:
        cause = f"optimum-neuron does not run this model: {error}"
        raise StartupError(cause, "Use another backend.", ExitCode.MODEL) from error
    if wanted.library_samples and not config.on_device_sampling:
        cause = f"optimum-neuron compiles no sampling into this model on {spec.world_size} cores."
        raise StartupError(cause, "Use --neuron-sampling host, or another --num-shard.", ExitCode.BACKEND)
    config.on_device_sampling = wanted.library_samples
    config.torch_dtype = getattr(torch, spec.dtype)
    return config


def _key(wanted: Wanted, sdk: Sdk) -> str:
    """The model's name, and a digest of its files and of everything that goes into what is compiled."""
    spec, limits = wanted.spec, wanted.limits
    folder = spec.model_dir.resolve()
    files = sorted(path for pattern in _READ for path in folder.glob(pattern))
    state = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    made_for = (limits.max_slots, limits.max_total_tokens, spec.world_size, spec.dtype, wanted.library_samples)
    parts = (str(folder), state, made_for, sdk.compiler_version, sdk.library_version)
    return f"{folder.name}-{blake2b(repr(parts).encode(), digest_size=12).hexdigest()}"
