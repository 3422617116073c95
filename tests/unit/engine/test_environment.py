"""Variables for a child process: set for a moment, and never over the user's own."""

from __future__ import annotations

import os

import pytest

from tgi_core.engine.environment import default_environment


def test_defaults_last_for_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TGI_TEST_UNSET", raising=False)
    with default_environment({"TGI_TEST_UNSET": "1"}):
        assert os.environ["TGI_TEST_UNSET"] == "1"
    assert "TGI_TEST_UNSET" not in os.environ


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TGI_TEST_SET", "mine")
    with default_environment({"TGI_TEST_SET": "ours"}):
        assert os.environ["TGI_TEST_SET"] == "mine"
    assert os.environ["TGI_TEST_SET"] == "mine"
