"""Whatever the level: the plugin imports without its SDK, probing never raises, what it declares makes sense."""

from __future__ import annotations

import msgspec
import pytest
import torch

from tgi_core.contract import CONTRACT_VERSION, Capabilities, GraphMode, Probe
from tgi_core.testing.conformance.comparison import ConformanceError
from tgi_core.testing.conformance.imports import Absence, probe_apart
from tgi_core.testing.conformance.subject import Subject
from tgi_core.testing.conformance.tolerance import TOLERANCES


@pytest.mark.parametrize("absence", list(Absence))
def test_the_plugin_loads_and_probes(bare_subject: Subject, absence: Absence) -> None:
    """In a fresh interpreter that has, or has not, what the plugin would like to import."""
    probe_apart(bare_subject.backend, absence)


def test_probe(bare_subject: Subject) -> None:
    """Devices, or a reason and what would help; twice the same."""
    try:
        probe = bare_subject.backend.probe()
    except Exception as error:
        raise ConformanceError(f"probe() raises {type(error).__name__}, which it never may: {error}") from error
    if not isinstance(probe, Probe):
        raise ConformanceError(f"probe() returns {type(probe).__name__} and not Probe.")
    if not probe.devices and not (probe.reason and probe.fix):
        raise ConformanceError("probe() finds no device and does not say why, or what would help.")
    if [device.index for device in probe.devices] != list(range(len(probe.devices))):
        raise ConformanceError("probe() does not number devices 0, 1, 2 and so on.")
    if bare_subject.backend.probe() != probe:
        raise ConformanceError("probe() says something else when it is asked twice.")
    if probe.devices and not bare_subject.probe.devices:
        raise ConformanceError(f"probe() finds devices, and capabilities() raises: {bare_subject.probe.reason}.")


def test_info(bare_subject: Subject) -> None:
    """It can be sent and stored, and belongs to this contract."""
    info = bare_subject.backend.info
    if msgspec.json.decode(msgspec.json.encode(info), type=type(info)) != info:
        raise ConformanceError("`info` is not plain data.")
    if info.contract_version != CONTRACT_VERSION:
        raise ConformanceError(f"`info` says contract {info.contract_version}; this tgi-serve has {CONTRACT_VERSION}.")
    if not info.title:
        raise ConformanceError("`info` has no title.")


def test_capabilities(subject: Subject) -> None:
    """They can be stored, and contradict neither themselves nor this version of the contract."""
    found = subject.capabilities
    if subject.backend.capabilities() != found:
        raise ConformanceError("capabilities() says something else when it is asked twice.")
    if msgspec.json.decode(msgspec.json.encode(found), type=Capabilities) != found:
        raise ConformanceError("capabilities() is not plain data.")
    faults = [
        *(f"{dtype} is no type of the kit's" for dtype in found.dtypes if dtype not in TOLERANCES),
        *(f"torch has no type {dtype}" for dtype in found.dtypes if not hasattr(torch, dtype)),
        *(
            f"{dtype} is declared batch-invariant and is not among dtypes"
            for dtype in found.batch_invariant_dtypes
            if dtype not in found.dtypes
        ),
        *(f"blocks of {size} tokens cannot be" for size in found.block_sizes if size < 1),
    ]
    for name in ("dtypes", "block_sizes", "attention"):
        if not getattr(found, name):
            faults.append(f"{name} is empty")
    if found.run_ahead not in (0, 1):
        faults.append(f"run_ahead is {found.run_ahead}, and 0 or 1 can be")
    if found.max_world_size < 1:
        faults.append(f"max_world_size is {found.max_world_size}, and a model takes one device at least")
    # Nothing in this version of the contract asks for these, so nothing can show that they hold.
    if found.kv_dtypes != ("auto",):
        faults.append(f"kv_dtypes {found.kv_dtypes} cannot be asked for in this version of the contract")
    if found.graph is GraphMode.FULL:
        faults.append("graph `full` cannot be asked for in this version of the contract")
    if faults:
        raise ConformanceError(f"capabilities(): {'; '.join(faults)}.")
