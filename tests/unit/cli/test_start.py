"""The command as a user runs it, as far as every way to refuse a start; no model is ever loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tgi_api.cli.listener import bind_port
from tgi_core.errors import ExitCode

RUN = "import sys; from tgi_api.cli import main; sys.exit(main())"


class LogLine(msgspec.Struct):
    timestamp: str
    level: str
    message: str
    target: str


def tgi_serve(*arguments: str, code: str = RUN, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command with nothing in its environment but what a process needs and ``environ``."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=kept | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"} | environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def refused(run: subprocess.CompletedProcess[str], exit_code: ExitCode) -> str:
    """The standard error of a start that was refused as it should be: readable, without a traceback."""
    assert run.returncode == exit_code, run.stderr
    assert run.stderr.startswith("error: ")
    assert "Traceback" not in run.stderr
    return run.stderr


def test_help_shows_every_group_and_loads_nothing_heavy() -> None:
    code = (
        "import sys; from tgi_api.cli import main; code = main(); "
        "print({'torch', 'transformers', 'numpy', 'litestar', 'rich', 'zmq'} & set(sys.modules)); sys.exit(code)"
    )
    run = tgi_serve("--help", code=code)
    assert run.returncode == 0
    assert run.stdout.splitlines()[-1] == "set()"
    for part in ("Model:", "Scheduling:", "--max-batch-size N", "Not supported yet", "download-weights"):
        assert part in run.stdout


@pytest.mark.parametrize("command", [["download-weights", "--help"], ["serve", "--help"]])
def test_each_command_has_its_help(command: list[str]) -> None:
    run = tgi_serve(*command)
    assert run.returncode == 0
    assert "--revision" in run.stdout


def test_version() -> None:
    assert tgi_serve("--version").stdout.startswith("tgi-serve 0.")


def test_an_unknown_flag() -> None:
    text = refused(tgi_serve("--modle-id", "x"), ExitCode.USAGE)
    assert "--modle-id" in text
    assert "--model-id" in text


def test_all_refusals_are_told_at_once_each_with_its_fix() -> None:
    run = tgi_serve(
        "--quantize", "awq", "--port", "x", "--max-input-tokens", "9", "--backend", "abacus", "--api-key", "s3cret",
        "--env", "--grammar-engine", "syntax", MAX_TOTAL_TOKENS="9", LORA_ADAPTERS="a/b", MASTER_PORT="29500",
    )  # fmt: skip
    text = refused(run, ExitCode.USAGE)
    for part in ("--quantize=awq", "--port=x", "LORA_ADAPTERS=a/b", "--max-input-tokens (9)", "No model", "`abacus`"):
        assert part in text
    assert "no grammar engine `syntax`; installed are: llguidance" in text
    assert text.count("error: ") == 7
    assert "MASTER_PORT has no effect" in run.stdout
    assert "--api-key=<hidden>" in run.stdout
    assert "s3cret" not in run.stdout + run.stderr


def test_unknown_parsers_name_those_there_are() -> None:
    run = tgi_serve("--model-id", "m", "--tool-call-parser", "xml", "--reasoning-parser", "muse", "--backend", "null")
    text = refused(run, ExitCode.USAGE)
    assert "no tool call parser `xml`; installed are: command_r, deepseek_v3" in text
    assert "no reasoning parser `muse`; installed are: command, deepseek_r1" in text


def test_in_json_every_line_of_output_is_a_log_line() -> None:
    run = tgi_serve("--json-output", "--env", "--backend", "abacus", "--model-id", "m", NGROK="true")
    assert run.returncode == ExitCode.BACKEND
    assert run.stderr == ""
    lines = [msgspec.json.decode(line, type=LogLine) for line in run.stdout.splitlines()]
    assert [line.level for line in lines if line.level != "INFO"] == ["WARN", "ERROR"]
    assert "There is no backend `abacus`" in lines[-1].message


def test_an_unknown_backend_names_those_there_are() -> None:
    text = refused(tgi_serve("--model-id", "m", "--backend", "abacus"), ExitCode.BACKEND)
    assert "no backend `abacus`" in text
    assert "null" in text


def test_a_taken_port_is_told_before_the_model_is_looked_for() -> None:
    with bind_port("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        run = tgi_serve("--model-id", "/no/model", "--backend", "null", HOSTNAME="127.0.0.1", PORT=str(port))
    text = refused(run, ExitCode.PORT)
    assert f"Port {port} of 127.0.0.1 is already in use." in text


@pytest.mark.parametrize("command", [["--port", "0", "--backend", "null", "--model-id"], ["download-weights"]])
def test_a_model_that_is_not_there(command: list[str]) -> None:
    assert "/no/model" in refused(tgi_serve(*command, "/no/model"), ExitCode.MODEL)


@pytest.mark.parametrize("command", [["--port", "0", "--backend", "null", "--model-id"], ["download-weights"]])
def test_a_broken_gguf_file(command: list[str], tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(range(200)))
    assert "broken.gguf" in refused(tgi_serve(*command, str(broken)), ExitCode.MODEL)


def test_download_weights_refuses_what_it_cannot_do() -> None:
    run = tgi_serve("download-weights", "m", "--extension", ".bin", "--no-auto-convert", "--merge-lora")
    assert refused(run, ExitCode.USAGE).count("error: ") == 3


def test_download_weights_prints_where_a_local_model_lies(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    run = tgi_serve("download-weights", str(tmp_path), "--extension", ".safetensors")
    assert run.returncode == 0
    assert str(tmp_path) in run.stdout


@pytest.mark.parametrize(("name", "exit_code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_before_the_server_is_up_ends_the_command_without_a_traceback(name: str, exit_code: int) -> None:
    code = (
        "import os, signal, sys; import tgi_api.cli as cli; "
        # Tests that run in the background inherit that it is ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler); "
        f"cli.make_root = lambda *_: os.kill(os.getpid(), signal.{name}); sys.exit(cli.main())"
    )
    run = tgi_serve(code=code)
    assert run.returncode == exit_code
    assert "Traceback" not in run.stderr


def test_quantize_says_what_to_do_instead() -> None:
    text = refused(tgi_serve("quantize", "org/name", "/out", "--groupsize", "128", "--act-order"), ExitCode.USAGE)
    assert "quantize org/name /out" in text
    assert "not supported" in text
