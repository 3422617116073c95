"""Runs a case on a backend's kernels and on the reference, and says what is wrong in words."""

from __future__ import annotations

import torch

from tgi_core.contract import Kernels
from tgi_core.testing.conformance.cases import Bench, Case
from tgi_core.testing.conformance.cases.attention_steps import NO_BLOCK
from tgi_core.testing.conformance.cases.case import OracleKernels, Outputs
from tgi_core.testing.conformance.tolerance import TOLERANCES, difference

_HOST = torch.device("cpu")


class ConformanceError(AssertionError):
    """The backend breaks the contract; the message says where and, as far as it is known, how."""


def check_case(case: Case, kernels: Kernels, device: torch.device, dtype_name: str) -> None:
    """Compare.

    Raises:
        ConformanceError: the operation raises, or a result is not the reference's.
    """
    dtype: torch.dtype = getattr(torch, dtype_name)
    tolerance = case.tolerance if case.tolerance is not None else TOLERANCES[dtype_name].kernel
    expected = case.run(OracleKernels(), Bench(_HOST, dtype))
    try:
        actual = case.run(kernels, Bench(device, dtype))
    except Exception as error:
        raised = f"{case.operation} ({case.label}, {dtype_name}) raises {type(error).__name__}: {error}"
        if str(NO_BLOCK) in str(error):
            raised += ". A column of a block table is read that lies past its row's end and names no block."
        raise ConformanceError(raised) from error
    faults = _faults(actual, expected, tolerance)
    if not faults:
        return
    told = [f"{case.operation} ({case.label}, {dtype_name}): {faults}."]
    for mistake, run in case.suspects.items():
        mistaken = run(OracleKernels(), Bench(_HOST, dtype))
        if _faults(mistaken, expected, tolerance) and not _faults(actual, mistaken, tolerance):
            told.append(f"It is what comes out when {mistake}.")
    first = {name: tensor.detach().cpu() for name, tensor in actual.items()}
    if _faults(case.run(kernels, Bench(device, dtype)), first, tolerance):
        told.append("The same inputs give something else when it is run again.")
    raise ConformanceError(" ".join(told))


def _faults(actual: Outputs, expected: Outputs, tolerance: float) -> str:
    faults = []
    for name, tensor in expected.items():
        fault = difference(actual[name], tensor, tolerance)
        if fault:
            faults.append(f"{name} {fault}")
    return "; ".join(faults)
