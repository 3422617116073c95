"""A model on one device: chosen, bound to kernels and loaded, and what it needs of tables and caches."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tgi_core.contract import Capabilities, Device, Kernels, KVGroup, LoadProgress, ShardSpec
from tgi_core.errors import ExitCode, StartupError
from tgi_core.models.choose import choose_model
from tgi_core.models.model import Encoder, Loaded, LoadedModel, LoadOptions, OwnCache
from tgi_core.models.rotary import rotary_table
from tgi_core.shards.binding import bind_attention
from tgi_core.shards.checks import check_dtype


class DeviceModel:
    """Weights and geometry; holds nothing of requests.

    Args:
        spec: what to build.
        capabilities: of the device's backend.
        device: where to run.
        kernels: the backend's operations; what they cannot do for this model is bound to the reference.

    Attributes:
        model: the chosen model.
        dtype: of weights and activations.
        attention_kernels: for each KV group the kernels that attend.
        windows: of each KV group.
        notes: what a user should know, such as operations bound to the reference.

    Raises:
        StartupError: the model's configuration, its type or its dtype is not supported.
    """

    def __init__(self, spec: ShardSpec, capabilities: Capabilities, device: Device, kernels: Kernels) -> None:
        check_dtype(spec, capabilities)
        self._spec = spec
        self._capabilities = capabilities
        self._device = device
        self._kernels = kernels
        self._loaded: Loaded | None = None
        self.dtype: torch.dtype = getattr(torch, spec.dtype)
        self.model = choose_model(spec.model_dir, trust_remote_code=spec.trust_remote_code)
        self.windows = tuple(attention.window for attention in self.model.attention)
        binding = bind_attention(kernels, self.model.attention)
        self.attention_kernels = binding.kernels
        for attention, bound in zip(self.model.attention, binding.kernels, strict=True):
            sizes = capabilities.head_dims if bound is kernels else ()
            if sizes and attention.head_dim not in sizes:
                raise StartupError(
                    f"The device's attention does not take heads of {attention.head_dim} features.",
                    "Use another backend.",
                    ExitCode.BACKEND,
                )
        self.notes: list[str] = [*kernels.notes, *binding.notes]
        if self.model.reason:
            self.notes.append(f"runs as {self.model.path}. {self.model.reason}")

    @property
    def has_own_attention(self) -> bool:
        """Whether the backend's kernels attend in every group, and the reference in none."""
        return all(bound is self._kernels for bound in self.attention_kernels)

    def load(self, progress: LoadProgress) -> None:
        """Bring the weights onto the device."""
        options = LoadOptions(
            load_format=self._spec.load_format,
            dtype=self.dtype,
            device=self._device.torch_device,
            kernels=self._kernels,
            attention_kernels=self.attention_kernels,
            progress=progress,
        )
        self._loaded = self.model.load(options)
        self.notes += self._loaded.notes

    def unload(self) -> None:
        """Give the weights back."""
        self._loaded = None

    @property
    def decoder(self) -> LoadedModel:
        """The loaded model."""
        return self._known.model

    @property
    def own_cache(self) -> OwnCache | None:
        """Where the model keeps keys and values itself."""
        return self._known.own_cache

    @property
    def encoder(self) -> Encoder | None:
        """What reads the inputs of requests before the decoder begins."""
        return self._known.encoder

    @property
    def weights_bytes(self) -> int:
        """Memory of the weights."""
        return self._known.weights_bytes

    @property
    def keeps_states(self) -> bool:
        """Whether slots keep what no block of the KV cache holds."""
        return bool(self.model.states) or self.own_cache is not None

    @property
    def _known(self) -> Loaded:
        assert self._loaded is not None, "load comes before warm_up"
        return self._loaded

    # -- geometry -----------------------------------------------------------------------------------------------------

    def kv_groups(self, block_size: int) -> list[KVGroup]:
        """The groups of the KV cache, whoever keeps it."""
        own_cache = self.own_cache
        if own_cache is not None:
            own = KVGroup(None, own_cache.bytes_per_token * block_size)
            inputs = KVGroup(None, own_cache.bytes_per_encoder_token * block_size, cross=True)
            return [own] if self.encoder is None else [own, inputs]
        groups = []
        for group, spec in enumerate(self.model.attention):
            layer_bytes = math.prod(spec.cache_shape(1, block_size)) * self.dtype.itemsize
            # Where windows are not supported their blocks are kept to the end; attention still looks back no further.
            window = spec.window if self._capabilities.sliding_window else None
            groups.append(KVGroup(window, self.model.group_of_layer.count(group) * layer_bytes, spec.cross))
        return groups

    def states_bytes(self, max_slots: int) -> int:
        """Memory of what slots keep beside the KV cache, the scratch slot's too."""
        sizes = (math.prod(state.shape) * (state.dtype or self.dtype).itemsize for state in self.model.states)
        own_bytes = 0 if self.own_cache is None else self.own_cache.bytes_per_slot
        return (max_slots + 1) * (sum(sizes) + own_bytes)

    def make_caches(self, blocks: Sequence[int], block_size: int) -> list[Tensor]:
        """A cache for each layer that attends. They have one block more than the scheduler knows of: the scratch block.

        Args:
            blocks: of each KV group.
            block_size: tokens in a block.
        """
        attention, kernels = self.model.attention, self.attention_kernels
        return [
            self._device.zeros(kernels[group].cache_shape(attention[group], blocks[group] + 1, block_size), self.dtype)
            for group in self.model.group_of_layer
        ]

    def make_states(self, max_slots: int) -> list[Tensor]:
        """What slots keep beside the KV cache: [S, ...] each, the scratch slot's too."""
        return [
            self._device.zeros((max_slots + 1, *state.shape), state.dtype or self.dtype) for state in self.model.states
        ]

    def make_rotary_tables(self, num_positions: int) -> tuple[Tensor, ...]:
        """cos and sin of every position, for each of the model's rotary embeddings."""
        return tuple(rotary_table(rope, num_positions, self._device.torch_device) for rope in self.model.ropes)

    def eos_ids(self) -> Tensor:
        """The tokens that end a sequence, int64 on the device, as far as the vocabulary has them."""
        ids = [token for token in self._spec.eos_token_ids if 0 <= token < self.model.vocab_size]
        return torch.tensor(ids, dtype=torch.int64, device=self._device.torch_device)
