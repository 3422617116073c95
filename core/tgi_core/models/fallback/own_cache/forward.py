"""One call of a transformers model, by the names of arguments that its forward knows."""

from __future__ import annotations

import copy
import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tgi_core.models.fallback.own_cache.rows import size_bytes

_CACHE_NAMES = ("cache", "past_key_values", "cache_params", "state")
"""What the argument, and the output, that holds the cache is called, by version and architecture."""


class Way(NamedTuple):
    """How a cache is begun and gone on with, where architectures differ.

    Attributes:
        masked: a row that stands alone gets an attention mask too.
        prepared: the empty cache is made by what transformers calls before a generation's first step.
    """

    masked: bool
    prepared: bool


WAYS = tuple(Way(masked, prepared) for prepared in (False, True) for masked in (False, True))
"""In the order in which they are tried."""


class Padding(NamedTuple):
    """Rows of different lengths in one call.

    Attributes:
        mask_BL: int64, 0 for what pads a row on its left; this call's tokens included.
        positions_BT: int64, positions of this call's tokens.
    """

    mask_BL: Tensor
    positions_BT: Tensor


class NoCacheError(Exception):
    """The model gave no cache back."""


class Forward:
    """Calls ``model``; where it has an encoder, its decoder for one input.

    Attributes:
        way: how caches are used.
    """

    _encoded: Any = None
    """What the encoder gave for the input: transformers' output, with hidden states [1, L, E]."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.way = WAYS[0]
        self._names = set(inspect.signature(model.forward).parameters)
        self._cache_name = next((name for name in _CACHE_NAMES if name in self._names), "")

    def reading(self, ids_L: Tensor) -> Forward:
        """The same, for a decoder that sees this input of the encoder.

        Raises:
            Exception: whatever the architecture's code raises.
        """
        bound = copy.copy(self)
        encoder = self.model.get_encoder()
        bound._encoded = encoder(input_ids=ids_L[None], attention_mask=torch.ones_like(ids_L)[None], return_dict=True)
        return bound

    @property
    def encoded_bytes(self) -> int:
        """Memory of what the encoder made of the input."""
        return size_bytes(self._encoded)

    def whole(self, ids_BT: Tensor) -> Tensor:
        """Logits [B, T, V] of whole sequences, without a cache."""
        logits_BTV, _ = self._call(ids_BT, use_cache=False)
        return logits_BTV

    def go_on(self, ids_BT: Tensor, cache: Any, start: int, padding: Padding | None = None) -> tuple[Tensor, Any]:
        """Logits [B, T, V] of further tokens, and the cache that holds them too.

        Args:
            ids_BT: token ids.
            cache: of the tokens before them, which it may change; None for none.
            start: how many these are.
            padding: of several rows; None for one that stands alone.

        Raises:
            NoCacheError: the model gave none back.
            Exception: whatever the architecture's code raises.
        """
        end = start + ids_BT.shape[1]
        positions_T = torch.arange(start, end, device=ids_BT.device)
        arguments: dict[str, Any] = {"use_cache": True, "cache_position": positions_T}
        if padding is None:
            arguments["position_ids"] = positions_T[None]
            mask_1L = torch.ones((1, end), dtype=torch.int64, device=ids_BT.device)
            if self.way.masked:
                arguments["attention_mask"] = mask_1L
            if cache is None and self.way.prepared and self._encoded is None:
                prepared = self.model.prepare_inputs_for_generation(
                    ids_BT, attention_mask=mask_1L, cache_position=positions_T, use_cache=True
                )
                cache = prepared.get(self._cache_name)
        else:
            arguments |= {"attention_mask": padding.mask_BL, "position_ids": padding.positions_BT}
        if cache is not None:
            arguments[self._cache_name] = cache
        logits_BTV, cache = self._call(ids_BT, **arguments)
        if cache is None:
            raise NoCacheError
        return logits_BTV, cache

    def _call(self, ids_BT: Tensor, **arguments: Any) -> tuple[Tensor, Any]:
        arguments["input_ids"] = ids_BT
        if self._encoded is not None:
            for name in ("input_ids", "position_ids", "attention_mask"):
                if name in arguments:
                    arguments[f"decoder_{name}"] = arguments.pop(name)
            arguments["encoder_outputs"] = self._encoded
            arguments["attention_mask"] = ids_BT.new_ones(self._encoded.last_hidden_state.shape[:2])
        output = self.model(**{name: value for name, value in arguments.items() if name in self._names})
        caches = (getattr(output, name, None) for name in _CACHE_NAMES)
        # Where the signature does not take "return_dict" an old model may still return a tuple.
        logits_BTV = output.logits if hasattr(output, "logits") else output[0]
        return logits_BTV, next((cache for cache in caches if cache is not None), None)
