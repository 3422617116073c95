"""JSON as Python's own writer leaves it in model folders: with infinite numbers, which JSON has no word for."""

from __future__ import annotations

import json
from typing import Any

import msgspec


def decode_object(data: bytes) -> dict[str, Any]:
    """The object that ``data`` holds; ``Infinity`` and ``NaN`` are numbers.

    Raises:
        msgspec.MsgspecError: it holds none.
    """
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        try:
            return msgspec.convert(json.loads(data), dict[str, Any])
        except ValueError:
            raise error from None
