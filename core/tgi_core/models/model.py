"""A model as a shard sees it: what it needs of the cache, how its weights are loaded, what it computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from tgi_core.contract import AttentionSpec, Kernels, LoadProgress
from tgi_core.models.spec import RopeSpec
from tgi_core.models.step import Step


class LoadedModel(Protocol):
    """A model with weights on one device. Holds no state of requests: caches and tables come with each call."""

    @property
    def hidden_E(self) -> Tensor:
        """A row as ``hidden`` returns it, for its size and type."""

    def hidden(self, step: Step) -> Tensor:
        """Run all layers: the step's tokens -> hidden states [T, E]; writes caches and states."""

    def logits(self, hidden_BE: Tensor) -> Tensor:
        """The head: hidden states of the rows that sample -> [B, V]."""


class SlotState(NamedTuple):
    """What a layer keeps of a slot whatever its length.

    Attributes:
        shape: of one slot's part.
        dtype: None for the model's.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype | None = None


class LoadOptions(NamedTuple):
    """How weights are to be loaded.

    Attributes:
        load_format: "auto" reads the checkpoint; "dummy" makes random weights.
        dtype, device: of the weights.
        kernels: every operation but attention.
        attention_kernels: for each KV group the kernels that attend.
        progress: told of bytes read.
    """

    load_format: str
    dtype: torch.dtype
    device: torch.device
    kernels: Kernels
    attention_kernels: Sequence[Kernels]
    progress: LoadProgress


class Loaded(NamedTuple):
    """A loaded model and the memory that its weights take, in bytes."""

    model: LoadedModel
    weights_bytes: int


class Model(Protocol):
    """A model that has been chosen and not yet loaded.

    Attributes:
        path: how it runs, for people.
        reason: why that way; "" for an architecture of ours.
        vocab_size: width of the logits.
        max_positions: longest sequence the model was made for, in tokens.
        attention: one for each KV group.
        group_of_layer: index into ``attention`` of each layer that attends.
        ropes: rotary embeddings that ``hidden`` wants tables of.
        states: what it keeps of every slot beside the KV cache.
    """

    @property
    def path(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def max_positions(self) -> int: ...
    @property
    def attention(self) -> tuple[AttentionSpec, ...]: ...
    @property
    def group_of_layer(self) -> tuple[int, ...]: ...
    @property
    def ropes(self) -> tuple[RopeSpec, ...]: ...
    @property
    def states(self) -> tuple[SlotState, ...]: ...

    def records(self, kernels: Kernels) -> bool:
        """Whether a step of decodes with these kernels may be recorded as a graph."""

    def load(self, options: LoadOptions) -> Loaded:
        """Bring the weights onto the device.

        Raises:
            StartupError: they are missing, damaged or do not fit the configuration.
        """
