"""Requests of other chat APIs as bodies of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tgi_core.errors import RequestError


@contextmanager
def fields_named(names: Mapping[str, str]) -> Iterator[None]:
    """Errors in this context name fields as the client sent them: ``names`` maps to those from the chat's."""
    try:
        yield
    except RequestError as error:
        error.rename_fields(names)
        raise
