"""Reading the text of a flag or an environment variable as a value.

Every reader raises ValueError with what the value must be, worded to follow "must be".
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from pathlib import Path

Reader = Callable[[str], object]

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(|B|kB|KB|MB|GB|TB|KiB|MiB|GiB|TiB)")
_ROUTE = re.compile(r"/[\w./:@-]*", re.ASCII)
_UNIT_BYTES = {"": 1, "B": 1} | {
    name: base**power
    for power, letter in enumerate("KMGT", start=1)
    for name, base in ((f"{letter}B", 1000), (f"{letter}iB", 1024))
}
_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def text(value: str) -> str:
    """Any text that is not empty."""
    if not value.strip():
        raise ValueError("text that is not empty")
    return value


def boolean(value: str) -> bool:
    """true, false, 1, 0, yes or no, in any case."""
    try:
        return _BOOLEANS[value.strip().lower()]
    except KeyError:
        raise ValueError("one of true, false, 1, 0, yes, no") from None


def integer(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    """A reader of whole numbers of a range, both ends included."""
    bounds = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"

    def read(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            raise ValueError(f"a whole number {bounds}") from None
        if number < minimum or (maximum is not None and number > maximum):
            raise ValueError(f"a whole number {bounds}")
        return number

    return read


def fraction(value: str) -> float:
    """A number above 0 and at most 1."""
    number = _number(value)
    if not 0 < number <= 1:
        raise ValueError("a number above 0 and at most 1")
    return number


_LONGEST_DURATION_S = 1_000_000.0


def seconds(value: str) -> float:
    """A duration in seconds, 0 or more."""
    number = _number(value)
    if not 0 <= number <= _LONGEST_DURATION_S:
        raise ValueError(f"a number of seconds from 0 to {_LONGEST_DURATION_S:,.0f}")
    return number


def number_above(minimum: float) -> Callable[[str], float]:
    """A reader of finite numbers above ``minimum``."""

    def read(value: str) -> float:
        number = _number(value)
        if not minimum < number < float("inf"):
            raise ValueError(f"a number above {minimum:g}")
        return number

    return read


def number_from(minimum: float, maximum: float) -> Callable[[str], float]:
    """A reader of numbers of a range, both ends included."""

    def read(value: str) -> float:
        number = _number(value)
        if not minimum <= number <= maximum:
            raise ValueError(f"a number from {minimum:g} to {maximum:g}")
        return number

    return read


def choice(*names: str) -> Callable[[str], str]:
    """A reader of one word out of ``names``, in any case."""
    known = {name.lower(): name for name in names}

    def read(value: str) -> str:
        try:
            return known[value.strip().lower()]
        except KeyError:
            raise ValueError(f"one of {', '.join(names)}") from None

    return read


_TGI_ATTENTION = {"paged": "auto", "flashdecoding": "flash-attn", "flashdecoding-ipex": "auto"}
"""TGI's names: its paged kernels and Intel's, which every implementation here replaces, and flash-attn over a block
table."""


def attention(value: str) -> str:
    """The name of an implementation of attention, in any case; what there is depends on the backend."""
    word = text(value).strip().lower()
    return _TGI_ATTENTION.get(word, word)


def size_bytes(value: str) -> int:
    """An amount of memory such as 2GiB, 500MB or a plain number of bytes; at least one byte."""
    match = _SIZE.fullmatch(value.strip())
    amount_bytes = 0 if match is None else int(float(match[1]) * _UNIT_BYTES[match[2].replace("k", "K")])
    if amount_bytes == 0:
        raise ValueError("a size such as 2GiB, 500MB or a number of bytes")
    return amount_bytes


def existing_file(value: str) -> Path:
    """The path of a file that can be read."""
    path = Path(value)
    if not path.is_file():
        raise ValueError("the path of a file that exists")
    return path


def existing_directory(value: str) -> Path:
    """The path of a directory."""
    path = Path(value)
    if not path.is_dir():
        raise ValueError("the path of a directory that exists")
    return path


def any_path(value: str) -> Path:
    """A path that need not exist."""
    return Path(text(value))


def header_text(value: str) -> str:
    """Text that may stand in an HTTP header."""
    if not text(value).isascii() or not value.isprintable():
        raise ValueError("printable ASCII text")
    return value


def route_path(value: str) -> str:
    """The path of an HTTP route."""
    if not _ROUTE.fullmatch(value):
        raise ValueError("a path such as /predict")
    return value


def ip_address(value: str) -> str:
    """An IPv4 or IPv6 address, or localhost."""
    if value == "localhost":
        return "127.0.0.1"
    try:
        return str(ipaddress.ip_address(value))
    except ValueError:
        raise ValueError("an IP address such as 0.0.0.0, 127.0.0.1 or ::") from None


def _number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return float("nan")
