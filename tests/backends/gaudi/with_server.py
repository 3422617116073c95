"""A whole server on a fake card; run by ``make test-backends`` only."""

from __future__ import annotations

import pytest

from tests.backends.gaudi.fake import FAKE_SDK
from tests.backends.same_texts import make_requests, serve_texts

LIMITS = ("--max-batch-size", "4", "--max-total-tokens", "512", "--max-batch-prefill-tokens", "256")


@pytest.mark.timeout(900)
def test_texts_are_those_of_the_cpu_and_nothing_is_compiled_for_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every shape is prepared, and one that is missing would fail its step; a late recording or recipe would show."""
    requests = make_requests()[:16]
    expected = serve_texts("cpu", requests)
    monkeypatch.setenv("PYTHONPATH", str(FAKE_SDK))
    assert serve_texts("gaudi", requests, *LIMITS, "--strict-shapes") == expected
