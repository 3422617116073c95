"""The models that ship with a module of their own, because the decoder cannot compute them."""

from __future__ import annotations

from tgi_core.models.encoder_decoder import ENCODER_DECODERS
from tgi_core.models.family import ModuleArchitecture
from tgi_core.models.state_space import STATE_SPACE

MODULES: tuple[ModuleArchitecture, ...] = (
    *STATE_SPACE,
    *ENCODER_DECODERS,
)
