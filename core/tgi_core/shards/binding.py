"""Which kernels attend: the backend's own, or the reference where these cannot."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tgi_core.contract import AttentionSpec, Kernels
from tgi_core.reference import ReferenceKernels


class AttentionBinding(NamedTuple):
    """For each attention of a model the kernels that do it, and what a user should know about that."""

    kernels: tuple[Kernels, ...]
    notes: tuple[str, ...]


def bind_attention(kernels: Kernels, specs: Iterable[AttentionSpec]) -> AttentionBinding:
    """Ask ``kernels`` once for each attention; a "no" binds the reference, with a note."""
    bound: list[Kernels] = []
    notes = []
    for spec in specs:
        if kernels.supports("attention", spec):
            bound.append(kernels)
        else:
            bound.append(ReferenceKernels())
            notes.append(f"attention {_describe(spec)} runs on the slower reference kernel")
    return AttentionBinding(tuple(bound), tuple(notes))


def _describe(spec: AttentionSpec) -> str:
    parts = [f"of {spec.num_heads} heads over {spec.num_kv_heads} key heads of {spec.head_dim} features"]
    if spec.window is not None:
        parts.append(f"a window of {spec.window}")
    return ", ".join((*parts, *sorted(spec.features)))
