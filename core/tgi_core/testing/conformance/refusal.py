"""Models that a backend refuses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tgi_core.contract import ShapeMode
from tgi_core.errors import ExitCode, StartupError
from tgi_core.testing.conformance.comparison import ConformanceError
from tgi_core.testing.conformance.subject import Subject


@contextmanager
def may_refuse(subject: Subject, what: str) -> Iterator[None]:
    """A vendor's library, or static shapes, may not do for a model: then the test is skipped.

    Raises:
        ConformanceError: a device of any shape refuses, something else than the model is refused, or what would help is
            not said.
    """
    try:
        yield
    except StartupError as error:
        if subject.capabilities.shape_mode is not ShapeMode.DYNAMIC and error.exit_code is ExitCode.MODEL and error.fix:
            pytest.skip(f"{what} is refused: {error}")
        raise ConformanceError(f"{what} is refused: {error}") from error
