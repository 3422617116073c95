from __future__ import annotations

import logging
from collections.abc import Iterator

import msgspec
import pytest

from tgi_core.logs import configure_logging


@pytest.fixture(autouse=True)
def _former_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers = handlers
    root.setLevel(level)


def test_json_lines_have_the_keys_of_tgi(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(json_output=True, level="info")
    logging.getLogger("tgi_core.engine").warning('a "quoted" %s\nline', "ä")
    [line] = capsys.readouterr().out.splitlines()
    record = msgspec.json.decode(line)
    assert record.pop("timestamp").endswith("Z")
    assert record == {"level": "WARN", "message": 'a "quoted" ä\nline', "target": "tgi_core.engine"}


def test_json_lines_carry_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(json_output=True, level="info")
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        logging.getLogger("tgi_core").exception("failed")
    [line] = capsys.readouterr().out.splitlines()
    record = msgspec.json.decode(line)
    assert record["level"] == "ERROR"
    assert "RuntimeError: boom" in record["exception"]


def test_text_lines(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(json_output=False, level="info")
    logging.getLogger("tgi_api.cli").info("ready")
    assert capsys.readouterr().out.endswith("Z  INFO tgi_api.cli: ready\n")


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        ("error", ["ERROR tgi_core", "ERROR other"]),
        ("warn", ["WARN tgi_core", "ERROR tgi_core", "WARN other", "ERROR other"]),
        ("info", ["INFO tgi_core", "WARN tgi_core", "ERROR tgi_core", "WARN other", "ERROR other"]),
        ("trace", ["DEBUG tgi_core", "INFO tgi_core", "WARN tgi_core", "ERROR tgi_core", "WARN other", "ERROR other"]),
    ],
)
def test_libraries_are_shown_from_warnings_on(level: str, shown: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(json_output=False, level=level)
    for name in ("tgi_core", "other"):
        for number in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
            logging.getLogger(name).log(number, "message")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=1)[1].split(":")[0] for line in lines] == shown
