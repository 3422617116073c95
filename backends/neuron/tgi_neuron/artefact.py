"""A model that optimum-neuron has compiled and saved: what it was compiled for, and what it then cannot serve."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from tgi_core.contract import ShardLimits, ShardSpec
from tgi_core.errors import ExitCode, StartupError
from tgi_neuron.sdk import Sdk

CONFIG_NAME = "neuron_config.json"
"""What optimum-neuron writes into the folder of a compiled model."""

_AGAIN = "serve the original model, which is then compiled."


class CompiledFor(msgspec.Struct, frozen=True, kw_only=True):
    """The part of ``neuron_config.json`` that matters to a server; names are optimum-neuron's.

    Attributes:
        batch_size: rows of a decode: sequences that the cache holds.
        sequence_length: tokens that a sequence of the cache holds.
        max_context_length: the longest prompt.
        tp_degree: cores that the model is split over.
        torch_dtype: name of the type.
        on_device_sampling: the model gives tokens, not logits.
        max_topk: it chooses among so many.
        continuous_batching: a prompt is one row of its own.
        neuronxcc_version, optimum_neuron_version: what it was made with.
        prefill_chunk_size: tokens of a chunk of a prompt; 0 for whole prompts.
    """

    batch_size: int
    sequence_length: int
    max_context_length: int
    tp_degree: int
    torch_dtype: str
    on_device_sampling: bool
    max_topk: int
    continuous_batching: bool
    neuronxcc_version: str
    optimum_neuron_version: str
    prefill_chunk_size: int = 0

    @property
    def max_tokens(self) -> int:
        """The longest sequence: one that must be computed anew enters as a prompt."""
        return min(self.sequence_length, self.max_context_length)


def is_artefact(folder: Path) -> bool:
    """Whether ``folder`` holds a compiled model."""
    return (folder / CONFIG_NAME).is_file()


def read_artefact(folder: Path) -> CompiledFor:
    """What the model in ``folder`` was compiled for.

    Raises:
        StartupError: its file is not optimum-neuron's.
    """
    path = folder / CONFIG_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=CompiledFor)
    except (OSError, msgspec.MsgspecError) as error:
        fix = "Export the model again with optimum-neuron 0.4."
        raise StartupError(f"{path} cannot be read: {error}.", fix, ExitCode.MODEL) from error


class Wanted(NamedTuple):
    """What a server asks of a compiled model.

    Attributes:
        spec, limits: the shard's.
        num_cores: NeuronCores that are visible.
        library_samples: the model is to choose the tokens.
    """

    spec: ShardSpec
    limits: ShardLimits
    num_cores: int
    library_samples: bool


def check_artefact(folder: Path, compiled: CompiledFor, wanted: Wanted, sdk: Sdk) -> None:
    """Refuse a compiled model that does not fit, with everything that does not.

    Raises:
        StartupError: it does not.
    """
    obstacles = [*_flags(compiled, wanted), *_machine(compiled, wanted, sdk)]
    if obstacles:
        causes, fixes = zip(*obstacles, strict=True)
        cause = f"The compiled model in {folder} does not fit: {'; '.join(causes)}."
        raise StartupError(cause, " ".join(fixes), ExitCode.BACKEND)


def _flags(compiled: CompiledFor, wanted: Wanted) -> Iterator[tuple[str, str]]:
    """What does not fit the command line, and the flag that would."""
    slots, rows = wanted.limits.max_slots, compiled.batch_size
    if slots > rows:
        yield f"it holds {rows} requests at once, not {slots}", f"Use --max-batch-size {rows}."
    asked, tokens = wanted.limits.max_total_tokens or 0, compiled.max_tokens
    if asked > tokens:
        yield f"its sequences have {tokens} tokens, not {asked}", f"Use --max-total-tokens {tokens}."
    dtype, its_dtype = wanted.spec.dtype, compiled.torch_dtype
    if dtype != its_dtype:
        yield f"it computes in {its_dtype}, not in {dtype}", f"Use --dtype {its_dtype}."
    cores, its_cores = wanted.spec.world_size, compiled.tp_degree
    if cores not in (1, its_cores):
        yield f"it is split over {its_cores} cores, not over {cores}", f"Use --num-shard {its_cores}, or leave it out."
    if wanted.library_samples != compiled.on_device_sampling:
        gives, flag = ("tokens", "device") if compiled.on_device_sampling else ("logits", "host")
        yield f"it gives {gives}", f"Use --neuron-sampling {flag}, or {_AGAIN}"


def _machine(compiled: CompiledFor, wanted: Wanted, sdk: Sdk) -> Iterator[tuple[str, str]]:
    """What does not fit the machine or this backend."""
    if compiled.tp_degree > wanted.num_cores:
        yield f"it needs {compiled.tp_degree} cores of {wanted.num_cores}", f"Use a larger machine, or {_AGAIN}"
    for name, made_with, here in (
        ("neuronx-cc", compiled.neuronxcc_version, sdk.compiler_version),
        ("optimum-neuron", compiled.optimum_neuron_version, sdk.library_version),
    ):
        if made_with != here:
            yield f"it was made with {name} {made_with}, and this is {here}", f"Install {name} {made_with}, or {_AGAIN}"
    if compiled.batch_size > 1 and not compiled.continuous_batching:
        yield "it takes the prompts of a whole batch at once", "Export it with continuous_batching=True."
    if compiled.prefill_chunk_size:
        yield "it takes prompts in chunks", "Export it with prefill_chunk_size=0."
