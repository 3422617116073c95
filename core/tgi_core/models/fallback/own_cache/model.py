"""A model that transformers describes, run with transformers' own attention and cache."""

from __future__ import annotations

import torch
from torch import Tensor

from tgi_core.contract import AttentionSpec, Kernels
from tgi_core.models.fallback.agreement import attending_with, difference, most_difference
from tgi_core.models.fallback.own_cache.decoder import OwnCacheDecoder, OwnEncoder
from tgi_core.models.fallback.own_cache.forward import Forward
from tgi_core.models.fallback.own_cache.trial import check_encoder, measure_input, trial_tokens, try_out
from tgi_core.models.fallback.pretrained import Pretrained, dtype_argument, size_bytes
from tgi_core.models.model import Loaded, LoadOptions, OwnCache, SlotState
from tgi_core.models.ropes import RopeSpec

_LONGEST_UNSAID = 32_768
"""Longest sequence where the configuration names none, as those of recurrent models do: memory has to end somewhere."""

_LENGTHS = "its rotary embeddings depend on the longest sequence of a forward"

_PADDED = 2
"""A batch may be padded to half as much again, and one layer of it exists twice while it grows or is put together."""


class OwnCacheModel:
    """See ``Model``. What its cache can do, and whether its attention is causal, is found when it is loaded.

    Args:
        pretrained: the model's folder.
        reason: why it runs neither by an architecture of ours nor over our attention.

    Raises:
        StartupError: transformers has no language model of this type.
    """

    attention: tuple[AttentionSpec, ...] = ()
    group_of_layer: tuple[int, ...] = ()
    ropes: tuple[RopeSpec, ...] = ()
    states: tuple[SlotState, ...] = ()

    def __init__(self, pretrained: Pretrained, *, reason: str) -> None:
        self.reason = reason
        self._pretrained = pretrained
        self.path = f"transformers' `{pretrained.class_name}` with its own attention and cache"
        self.vocab_size = pretrained.vocab_size
        self.max_positions = pretrained.max_positions or _LONGEST_UNSAID

    def records(self, kernels: Kernels) -> bool:  # noqa: ARG002 - whatever they can
        """Transformers' code may look at values on the host."""
        return False

    @torch.inference_mode()
    def load(self, options: LoadOptions) -> Loaded:
        """Let transformers load its model, then find what can be done with its cache.

        Raises:
            StartupError: the weights do not fit, the model looks ahead, or its encoder cannot be run apart.
        """
        model = self._pretrained.load(options, **dtype_argument(options.dtype))
        pad_id = getattr(self._pretrained.config, "pad_token_id", None)
        ids_T = trial_tokens(self.vocab_size, [] if pad_id is None else [pad_id], options.device)
        forward = Forward(model)
        if self._pretrained.has_encoder:
            check_encoder(forward, ids_T)
        notes = _choose_attention(forward, ids_T)
        tried = forward.reading(ids_T) if self._pretrained.has_encoder else forward
        abilities = try_out(tried, ids_T, alone=_LENGTHS if self._pretrained.rotation_follows_length else "")
        forward.way = tried.way
        logits_V = tried.whole(ids_T[None, :1])[0, 0].clone()
        # Some models pad their vocabulary.
        self.vocab_size = len(logits_V)
        decoder = OwnCacheDecoder(forward, abilities, logits_V)
        own_cache = OwnCache(
            bytes_per_token=abilities.bytes_per_token * (_PADDED if abilities.batches else 1),
            bytes_per_slot=abilities.bytes_per_slot,
            whole_prompts=not abilities.chunks,
            free=decoder.free,
        )
        notes = (*notes, *abilities.notes)
        if not self._pretrained.has_encoder:
            return Loaded(decoder, size_bytes(model), notes, own_cache)
        per_token = measure_input(forward, ids_T, caches=abilities.caches)
        # What the trial's own input took is counted with inputs.
        per_slot = max(0, abilities.bytes_per_slot - per_token * len(ids_T))
        own_cache = own_cache._replace(bytes_per_slot=per_slot, bytes_per_encoder_token=per_token)
        encoder = OwnEncoder(decoder, self._pretrained.max_encoder_positions or _LONGEST_UNSAID)
        return Loaded(decoder, size_bytes(model), notes, own_cache, encoder)


def _choose_attention(forward: Forward, ids_T: Tensor) -> tuple[str, ...]:
    """Leave the model with transformers' choice, or with plain torch where that leaves something out, such as a cap.

    Returns what to say of it.
    """
    model = forward.model
    chosen = getattr(model.config, "_attn_implementation", None)
    if chosen in (None, "eager"):
        return ()

    def compute() -> Tensor:
        return (forward if not model.config.is_encoder_decoder else forward.reading(ids_T)).whole(ids_T[None])[0]

    try:
        chosen_TV = compute()
        with attending_with(model, "eager"):
            plain_TV = compute()
    except Exception:  # not every architecture has both; what does not compute at all is found out later
        return ()
    change = difference(chosen_TV, plain_TV)
    if change <= most_difference(plain_TV.dtype):
        return ()
    model.set_attn_implementation("eager")
    return (f"attention runs in plain torch, since with `{chosen}` logits are off by {change:.1%}",)
