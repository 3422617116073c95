"""A causal language model of transformers as two functions: tokens to hidden states, hidden states to logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tgi_core.models.fallback.pretrained import size_bytes
from tgi_core.models.fallback.refusal import refuse


class SplitModel:
    """Layers and head of ``model``, apart.

    The head is the model's own forward with its layers replaced by a module that returns given hidden states: whatever
    else it does to logits (scales, caps) stays in.

    Attributes:
        model: the whole model; its layers are moved out.

    Raises:
        StartupError: the model is not made of layers and a head.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        prefix = str(model.base_model_prefix)
        base = getattr(model, prefix, None)
        if not prefix or not isinstance(base, nn.Module):
            raise refuse(f"its class `{type(model).__name__}` does not keep its layers apart from its head")
        self._base: Any = base
        self._given = _GivenStates()
        setattr(model, prefix, self._given)

    def hidden(self, ids_T: Tensor, positions_T: Tensor) -> Tensor:
        """Token ids [T] and their positions -> hidden states [T, E]; attention sees them in one row."""
        output = self._base(
            input_ids=ids_T.long()[None], position_ids=positions_T[None], use_cache=False, return_dict=True
        )
        states_TE: Tensor = output.last_hidden_state[0]
        return states_TE

    def logits(self, hidden_BE: Tensor) -> Tensor:
        """Hidden states [B, E] -> logits [B, V]."""
        self._given.states_1BE = hidden_BE[None]
        ids_1B = torch.zeros((1, len(hidden_BE)), dtype=torch.int64, device=hidden_BE.device)
        logits_BV: Tensor = self.model(input_ids=ids_1B, use_cache=False, return_dict=True).logits[0]
        self._given.states_1BE = None
        return logits_BV

    def size_bytes(self) -> int:
        """Memory of all weights; what is tied counts once."""
        return size_bytes(self.model, self._base)


class _GivenStates(nn.Module):
    """Stands where a model's layers were."""

    states_1BE: Tensor | None = None

    @property
    def decoder(self) -> _GivenStates:
        """Some heads call the decoder inside the base model."""
        return self

    def forward(self, *_arguments: Any, **_named: Any) -> _GivenOutput:
        return _GivenOutput((self.states_1BE,))


class _GivenOutput(tuple[Tensor | None, ...]):
    """Hidden states as the output of layers of any kind; what heads ask of it beside them is None."""

    @property
    def last_hidden_state(self) -> Tensor | None:
        return self[0]

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)
