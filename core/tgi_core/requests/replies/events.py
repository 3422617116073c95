"""What a reply turns out to be, piece by piece."""

from __future__ import annotations

from typing import NamedTuple


class Content(NamedTuple):
    """Text for the user."""

    text: str


class Reasoning(NamedTuple):
    """Text in which the model thinks."""

    text: str


class CallBegun(NamedTuple):
    """A call of the function ``name``; its arguments follow."""

    name: str


class Arguments(NamedTuple):
    """A piece of the arguments' JSON text; the pieces of a call joined are an object, unless the reply was cut off."""

    text: str


class CallEnded(NamedTuple):
    """Nothing more of the arguments comes; ``is_complete``: they are a JSON object."""

    is_complete: bool = True


Event = Content | Reasoning | CallBegun | Arguments | CallEnded
TextEvent = Content | Reasoning | Arguments


def merge(events: list[Event]) -> list[Event]:
    """The events with neighbouring pieces of the same kind joined."""
    merged: list[Event] = []
    for event in events:
        last = merged[-1] if merged else None
        if isinstance(event, Content | Reasoning | Arguments) and type(last) is type(event):
            merged[-1] = type(event)(last[0] + event.text)
        else:
            merged.append(event)
    return merged
