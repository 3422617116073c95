"""docs/models/README.md lists what the code has."""

from __future__ import annotations

import pytest

from tests.support.architectures import unavailable
from tests.support.model_table import END, PAGE, START, table
from tgi_core.models import ARCHITECTURES, MODULES


@pytest.mark.skipif(bool(unavailable("ministral")), reason="made with transformers 5, which knows them all")
def test_the_page_is_current() -> None:
    written = PAGE.read_text().split(START)[1].split(END)[0]
    assert written == table(), "run: python -m tests.support.model_table"
    assert written.count("\n") == 3 + len(ARCHITECTURES) + len(MODULES)
