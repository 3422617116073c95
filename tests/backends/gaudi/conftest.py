"""Fixtures of the Gaudi backend's tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.backends.gaudi.fake import fake_sdk


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A fake card, with its SDK installed; torch computes no gradients."""
    with fake_sdk(monkeypatch) as machine, torch.inference_mode():
        yield machine
