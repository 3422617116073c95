from __future__ import annotations

import io
import logging
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from tgi_api.cli.display import PROGRESS_INTERVAL_S, LogDisplay, TerminalDisplay
from tgi_api.cli.listener import bind_port
from tgi_api.cli.serve import StartView
from tgi_api.cli.settings import ServeSettings, make_config
from tgi_api.cli.summary import curl_line, make_summary, server_url, size_text
from tgi_core.config import EngineInfo, ServerConfig
from tgi_core.contract import UnsupportedParameter
from tgi_core.engine import supervisor
from tgi_core.errors import StartupError

INFO = EngineInfo(
    max_input_tokens=8191,
    max_total_tokens=8192,
    max_step_tokens=2048,
    max_slots=64,
    kv_tokens=100_000,
    block_size=16,
    vocab_size=49152,
    dtype="bfloat16",
    device="a device [with brackets]",
    load_seconds=0.5,
    warm_up_seconds=0.25,
    memory=[("weights", 3 * 1024**3), ("KV cache", 1536 * 1024**2)],
    notes=["attention with a window runs on the reference"],
)


def config(**given: object) -> ServerConfig:
    settings = ServeSettings(model_id="org/[name]", **given)  # type: ignore[arg-type]
    return make_config(settings, backend="cpu", model_dir=Path("/models/m"), port=3000)


def on_terminal(**options: object) -> tuple[TerminalDisplay, io.StringIO]:
    screen = io.StringIO()
    return TerminalDisplay(Console(file=screen, width=100, highlight=False, **options)), screen  # type: ignore[arg-type]


def test_the_summary_on_a_terminal_tells_everything_and_escapes_brackets() -> None:
    display, screen = on_terminal()
    display.summary(make_summary(config(revision="abc"), INFO))
    text = screen.getvalue()
    for part in (
        "org/[name] at abc",
        "cpu on a device [with brackets], bfloat16",
        "up to 8191 input tokens, 8192 in all",
        "3.0 GiB  weights",
        "1.5 GiB  KV cache",
        "attention with a window runs on the reference",
        "Serving on http://127.0.0.1:3000",
        "curl http://127.0.0.1:3000/generate",
    ):
        assert part in text


def test_the_summary_as_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        LogDisplay(json_output=False).summary(make_summary(config(), INFO))
    assert "Model: org/[name]" in caplog.messages
    assert "Memory: 3.0 GiB weights" in caplog.messages
    assert caplog.messages[-1] == "Serving on http://127.0.0.1:3000"


def test_the_summary_tells_what_requests_cannot_ask_for() -> None:
    parameters = [
        UnsupportedParameter("seed", "the library draws"),
        UnsupportedParameter("watermark_delta", "the library draws"),
        UnsupportedParameter("prompt_logprobs", "it scores no prompts"),
    ]
    notes = make_summary(config(), replace(INFO, unsupported_parameters=parameters)).notes
    assert notes[1:] == (
        "refused in requests are seed, watermark: the library draws",
        "refused in requests are decoder_input_details: it scores no prompts",
    )


def test_the_summary_tells_over_how_many_devices_the_model_is_split() -> None:
    split = config()
    split = replace(split, engine=replace(split.engine, world_size=4))
    assert dict(make_summary(split, INFO).facts)["Backend"].startswith("cpu on 4 × a device")


def test_the_key_is_told_to_be_needed_but_never_shown() -> None:
    summary = make_summary(config(api_key="s3cret"), INFO)
    assert dict(summary.facts)["API key"] == "required"
    assert "$API_KEY" in curl_line(summary)
    assert "s3cret" not in curl_line(summary) + repr(summary)
    assert "anyone" in dict(make_summary(config(), INFO).facts)["API key"]


def test_progress_is_logged_at_its_start_and_its_end_and_seldom_between(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 100.0
    display = LogDisplay(json_output=True, clock=lambda: now_s)
    with caplog.at_level(logging.INFO):
        for done_bytes in (0, 100, 200):
            display.progress("Loading", done_bytes, 1024)
        now_s += PROGRESS_INTERVAL_S
        display.progress("Loading", 512, 1024)
        display.progress("Loading", 1024, 1024)
        display.progress("Loading", 1024, 1024)
        display.progress("Converting", 1, 2)
    assert caplog.messages == [
        "Loading: 0 B of 1.0 KiB",
        "Loading: 512 B of 1.0 KiB, 102 B/s",
        "Loading: 1.0 KiB of 1.0 KiB, 204 B/s",
        "Converting: 1 B of 2 B",
    ]


def test_progress_on_a_terminal_keeps_one_bar_for_each_piece_of_work() -> None:
    display, screen = on_terminal(force_terminal=True)
    display.progress("Loading [1]", 0, 100)
    display.progress("Loading [1]", 100, 100)
    display.progress("Converting", 1, 2)
    display.close()
    last_picture = screen.getvalue().splitlines()[-3:-1]
    assert "Loading [1]" in last_picture[0]
    assert "Converting" in last_picture[1]


@pytest.mark.parametrize("json_output", [False, True])
def test_refusals_show_every_cause_with_its_fix(
    json_output: bool, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    refusals = [StartupError("First.", "Do this."), StartupError("Second.")]
    LogDisplay(json_output=json_output).refuse(refusals)
    if json_output:
        assert caplog.messages == ["First. Do this.", "Second."]
    else:
        assert capsys.readouterr().err == "error: First.\nfix: Do this.\nerror: Second.\n"


@pytest.mark.parametrize(
    ("hostname", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("10.1.2.3", "http://10.1.2.3:80"),
        ("fe80::1", "http://[fe80::1]:80"),
    ],
)
def test_the_address_is_one_that_a_client_can_use(hostname: str, url: str) -> None:
    assert server_url(hostname, 80) == url


@pytest.mark.parametrize(
    ("size_bytes", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 * 1024**4, "5.0 TiB")]
)
def test_sizes_for_people(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text


def test_a_start_shows_one_summary_and_later_events_as_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    display, screen = on_terminal()
    with bind_port("127.0.0.1", 0) as listener, caplog.at_level(logging.INFO):
        view = StartView(config(), listener, display)
        view(supervisor.EngineLoading(50, 100))
        assert "Serving" not in screen.getvalue()
        view(supervisor.EngineReady(INFO))
        view(supervisor.ServerReady())
        shown_at_start = screen.getvalue()
        assert shown_at_start.count("Serving on") == 1
        view(supervisor.EngineLost("the engine was killed by SIGKILL", 0.5))
        view(supervisor.EngineLoading(50, 100))
        view(supervisor.EngineReady(INFO))
        view(supervisor.Stopping("received SIGTERM"))
    assert screen.getvalue() == shown_at_start
    assert caplog.messages == [
        "The engine is lost: the engine was killed by SIGKILL. A new one starts in 0.5 s.",
        "A new engine takes requests.",
        "The server stops: received SIGTERM.",
    ]
