"""Registers the stand-ins, none of which is ever chosen by itself."""

from __future__ import annotations

from collections.abc import Iterable

from tgi_core.contract import Backend
from tgi_core.hookspecs import hookimpl
from tgi_core.testing.stand_ins.bucketed import BucketedCpuBackend
from tgi_core.testing.stand_ins.whole_model import WholeModelCpuBackend


@hookimpl
def tgi_backends() -> Iterable[Backend]:
    """A device that compiles, and one that owns the whole model."""
    return [BucketedCpuBackend(), WholeModelCpuBackend()]
