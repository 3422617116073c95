"""Which mode the process runs in."""

from fake_hpu.machine import MACHINE


def is_lazy():
    """Whether operations are gathered."""
    return MACHINE.is_lazy
