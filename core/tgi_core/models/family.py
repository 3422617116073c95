"""Families of models: a model type, how its configuration is read, and how its checkpoints differ."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec

from tgi_core.models.names import WeightNames

if TYPE_CHECKING:
    from tgi_core.models.hf_config import HFConfig
    from tgi_core.models.model import Model
    from tgi_core.models.spec import ArchitectureSpec


class ModelFamily(msgspec.Struct, frozen=True, kw_only=True):
    """A family of models, whatever computes them.

    Attributes:
        model_type: as ``config.json`` names it.
        renames: checkpoint prefixes and what they stand for, tried in order; the first that fits is replaced. ``{}``
            stands for a number, the same on both sides.
        ignored: prefixes of tensors that the text model does not need, with ``{}`` for any number.
    """

    model_type: str
    renames: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """``Model.path`` of its models."""
        return f"architecture `{self.model_type}` of tgi-serve"


class Architecture(ModelFamily, frozen=True, kw_only=True):
    """A family of decoders.

    Attributes:
        build: reads the configuration; raises StartupError for a feature it does not know.
        names: where the checkpoint keeps the weights.
    """

    build: Callable[[HFConfig], ArchitectureSpec]
    names: WeightNames = WeightNames()


class ModuleArchitecture(ModelFamily, frozen=True, kw_only=True):
    """A family of models that ``Decoder`` cannot compute and that bring a module of their own.

    Attributes:
        open: describes the model in a folder from this family and the folder's configuration, without loading it;
            raises StartupError for a feature it does not know.
    """

    open: Callable[[Self, Path, HFConfig], Model]
