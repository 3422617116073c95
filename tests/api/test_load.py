"""``bench http``: a load against a real server gives true figures, and says so when it cannot."""

from __future__ import annotations

import pytest

from tests.support.server import free_port
from tgi_api.cli import main
from tgi_api.load import percentile, text_prompts


def test_prompts_are_new_for_every_seed_and_as_long_as_asked() -> None:
    first, again, other = (text_prompts(3, seed, words=5) for seed in (1, 1, 2))
    assert first == again
    assert not set(first) & set(other)
    assert [len(prompt.split()) for prompt in first] == [5, 5, 5]


def test_percentiles() -> None:
    values = [float(value) for value in range(1, 101)]
    assert (percentile(values, 50), percentile(values, 99), percentile([], 50)) == (50.0, 99.0, 0.0)


def test_no_server_is_said_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "http", "--url", f"http://127.0.0.1:{free_port()}", "--streams", "2"]) == 1
    error = capsys.readouterr().err
    assert "Connect call failed" in error
    assert "Traceback" not in error


def test_a_wrong_address_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "http", "--url", "localhost:3000"]) == 2
    assert "no address" in capsys.readouterr().err
