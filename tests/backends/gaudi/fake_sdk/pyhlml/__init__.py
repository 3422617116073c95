"""A strict fake of habana-pyhlml: what it lists, with its types."""

import os
from types import SimpleNamespace

CARDS_VARIABLE = "TGI_FAKE_HPU_CARDS"
"""How many cards the machine has."""

_MEMORY_BYTES = 96 << 30


class HLMLError(Exception):
    """The library's errors."""


_IS_OPEN = [False]


def hlmlInit():
    if os.environ.get(CARDS_VARIABLE, "1") == "0":
        # As the real one does, on its standard output.
        print("Failed to load libhlml")
        raise HLMLError("HLML Error with code 1")
    _IS_OPEN[0] = True


def hlmlShutdown():
    _check()
    _IS_OPEN[0] = False


def hlmlDeviceGetCount():
    _check()
    return int(os.environ.get(CARDS_VARIABLE, "1"))


def hlmlDeviceGetHandleByIndex(index):
    _check()
    return SimpleNamespace(index=index)


def hlmlDeviceGetName(device):
    _check()
    return b"Gaudi 2 (a fake)"


def hlmlDeviceGetMemoryInfo(device):
    _check()
    return SimpleNamespace(free=_MEMORY_BYTES, total=_MEMORY_BYTES, used=0)


def _check():
    if not _IS_OPEN[0]:
        raise HLMLError("HLML Error with code 1: not initialized")
