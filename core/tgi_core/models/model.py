"""A model as a shard sees it: what it needs of the cache, how its weights are loaded, what it computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from tgi_core.contract import AttentionSpec, Kernels, LoadProgress
from tgi_core.models.ropes import RopeSpec
from tgi_core.models.sources import WeightSource
from tgi_core.models.step import EncoderStep, Step


class LoadedModel(Protocol):
    """A model with weights on one device. Caches and tables of requests come with each call (but see ``OwnCache``)."""

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
        source: where weights come from, whatever the format; None for the model's folder.
    """

    load_format: str
    dtype: torch.dtype
    device: torch.device
    kernels: Kernels
    attention_kernels: Sequence[Kernels]
    progress: LoadProgress
    source: WeightSource | None = None


class OwnCache(NamedTuple):
    """Of a model that keeps the keys and values of slots itself: what the shard must know of that.

    Attributes:
        bytes_per_token: memory that a token of a slot takes.
        bytes_per_slot: memory that a slot takes beside that.
        whole_prompts: all known tokens of a request must be computed in the step of its first.
        free: called with slots whose requests are gone; the next token of each is the first of another sequence.
        bytes_per_encoder_token: memory that a token of an encoder's input takes.
    """

    bytes_per_token: int
    bytes_per_slot: int
    whole_prompts: bool
    free: Callable[[Sequence[int]], None]
    bytes_per_encoder_token: int = 0


class Encoder(Protocol):
    """The side of a model that reads a request's input, before its decoder computes the first token.

    Attributes:
        max_tokens: longest input the model was made for.
    """

    @property
    def max_tokens(self) -> int: ...

    def __call__(self, step: EncoderStep) -> None:
        """Compute the inputs and write what the decoder sees of them: the keys and values of its cross-attention."""


class Loaded(NamedTuple):
    """A loaded model.

    Attributes:
        model: ready to compute.
        weights_bytes: memory that its weights take.
        notes: what a user should know of them.
        own_cache: None for a model that uses the shard's caches.
        encoder: of a model whose attention has a group with ``AttentionSpec.cross``, or that keeps the input in a cache
            of its own; else None.
    """

    model: LoadedModel
    weights_bytes: int
    notes: tuple[str, ...] = ()
    own_cache: OwnCache | None = None
    encoder: Encoder | None = None


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
