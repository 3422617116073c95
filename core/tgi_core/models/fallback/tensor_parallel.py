"""A transformers model over several ranks: which part of each weight a rank holds, by the model's own plan.

A plan names a style for modules and for parameters that belong to no module of their own. Shape letters: O outputs and
I inputs of a linear, X experts, V vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tgi_core.models.fallback.refusal import refuse


class Cut(Enum):
    """Along which axis a weight is divided."""

    WHOLE = "each rank has all of it"
    OUTPUTS = "[O, I] or [X, O, I] along O, and its bias"
    PACKED_OUTPUTS = "the same, each half of O by itself: two linears lie in one weight"
    INPUTS = "[O, I] or [X, O, I] along I; the bias is rank 0's, since outputs are added"
    PACKED_INPUTS = "the same, each half of I by itself"
    VOCABULARY = "an embedding [V, E] along V; a token is looked up where its row is"


class Join(Enum):
    """What makes a module's output the same on all ranks."""

    NONE = "nothing: what follows takes each rank's part"
    SUM = "the ranks' outputs are added"
    GATHER = "the ranks' outputs are put side by side"


class Role(NamedTuple):
    """What a style means.

    Attributes:
        cut: of the weight.
        join: of the output.
        splits_input: a rank takes its part of an input that all have whole.
    """

    cut: Cut
    join: Join = Join.NONE
    splits_input: bool = False


_STYLES: Mapping[str, Role] = {
    "colwise": Role(Cut.OUTPUTS),
    "local_colwise": Role(Cut.OUTPUTS),
    "colwise_rep": Role(Cut.OUTPUTS, Join.GATHER),
    "colwise_gather_output": Role(Cut.OUTPUTS, Join.GATHER),
    "packed_colwise": Role(Cut.PACKED_OUTPUTS),
    "rowwise": Role(Cut.INPUTS, Join.SUM),
    "local_rowwise": Role(Cut.INPUTS),
    "rowwise_rep": Role(Cut.INPUTS, Join.SUM, splits_input=True),
    "rowwise_split_input": Role(Cut.INPUTS, Join.SUM, splits_input=True),
    "packed_rowwise": Role(Cut.PACKED_INPUTS, Join.SUM),
    "local_packed_rowwise": Role(Cut.PACKED_INPUTS),
    "embedding_rowwise": Role(Cut.VOCABULARY, Join.SUM),
    "moe_tp_experts": Role(Cut.WHOLE, Join.SUM),
    "gather": Role(Cut.WHOLE, Join.SUM),
    "local": Role(Cut.WHOLE),
    "replicate": Role(Cut.WHOLE),
    "replicated_with_grad_allreduce": Role(Cut.WHOLE),
}
"""transformers' names, those of version 4 too."""

_ATTENTION = re.compile(r"attn|attention")


class TensorParallelPlan:
    """The plan of ``model`` for ``world`` ranks.

    Args:
        model: a causal language model of transformers; its weights may be without data.
        world: how many ranks.

    Raises:
        StartupError: the model has no plan, one with a style that is not known here, or heads that do not divide.
    """

    def __init__(self, model: Any, world: int) -> None:
        layers = getattr(model.config, "base_model_tp_plan", None) or {}
        styles = {f"{model.base_model_prefix}.{name}": style for name, style in layers.items()}
        # Version 5 has the layers' plan in here too.
        styles |= getattr(model, "_tp_plan", None) or {}
        if not styles:
            raise refuse(f"its class `{type(model).__name__}` has no plan for several devices")
        unknown = {name: style for name, style in styles.items() if style not in _STYLES}
        if unknown:
            told = ", ".join(f"`{style}` for {name}" for name, style in unknown.items())
            raise refuse(f"its plan for several devices has what is not known here: {told}")
        self.world = world
        self._roles = {name: _STYLES[style] for name, style in styles.items()}
        parts_heads = any(
            role == _STYLES["colwise"] and _ATTENTION.search(name) is not None for name, role in self._roles.items()
        )
        text = model.config.get_text_config()
        for key in ("num_attention_heads", "num_key_value_heads"):
            heads = getattr(text, key, None) or world
            if parts_heads and heads % world:
                raise refuse(f"its {heads} `{key}` cannot be divided among {world} devices")

    def role(self, name: str) -> Role:
        """Of a module, or of a parameter that the plan names; of anything else: whole."""
        return self._roles.get(re.sub(r"\.\d+(?=\.|$)", ".*", name), _STYLES["replicate"])

    def slice(self, name: str, weight: Tensor, rank: int) -> Tensor:
        """The part of the parameter ``name`` that ``rank`` holds.

        Raises:
            StartupError: it cannot be divided evenly.
        """
        module, _, kind = name.rpartition(".")
        # A plan names either the module or the parameter itself.
        cut = self.role(name).cut
        if cut is Cut.WHOLE:
            cut = self.role(module).cut
            if kind == "bias" and cut in (Cut.INPUTS, Cut.PACKED_INPUTS):
                return weight if rank == 0 else weight.new_zeros(weight.shape)
            if kind not in ("weight", "bias"):
                cut = Cut.WHOLE
        match cut:
            case Cut.WHOLE:
                return weight
            case Cut.VOCABULARY:
                return self._part(name, weight, 0, rank)
            case Cut.OUTPUTS | Cut.PACKED_OUTPUTS:
                axis = -1 if kind == "bias" else -2
            case Cut.INPUTS | Cut.PACKED_INPUTS:
                axis = -1
        return self._part(name, weight, axis, rank, packed=cut in (Cut.PACKED_OUTPUTS, Cut.PACKED_INPUTS))

    def _part(self, name: str, weight: Tensor, axis: int, rank: int, *, packed: bool = False) -> Tensor:
        size, pieces = weight.shape[axis], 2 if packed else 1
        if size % (self.world * pieces):
            raise refuse(f"{name} of shape {list(weight.shape)} cannot be divided among {self.world} devices")
        return torch.cat([piece.chunk(self.world, axis)[rank] for piece in weight.chunk(pieces, axis)], axis)
