"""Models that keep a state of each sequence instead of its keys and values: Mamba and its kin."""

from __future__ import annotations

from tgi_core.models.family import ModuleArchitecture
from tgi_core.models.state_space.config import read_dual, read_scan, read_scan_with_norms
from tgi_core.models.state_space.model import opener

# The models' authors say "embedding", transformers "embeddings".
_RENAMES = (("backbone.embedding.", "backbone.embeddings."),)

STATE_SPACE: tuple[ModuleArchitecture, ...] = tuple(
    ModuleArchitecture(model_type=model_type, open=opener(read), renames=_RENAMES)
    for model_type, read in (("mamba", read_scan), ("mamba2", read_dual), ("falcon_mamba", read_scan_with_norms))
)
