"""examples/backend-plugin: a third party's distribution beside the server, and the page that builds it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.server import ServerProcess
from tests.testing.kit import run_kit
from tests.testing.page import blocks

EXAMPLE = Path(__file__).parents[2] / "examples" / "backend-plugin"
BODY = {"inputs": "The capital of France is", "parameters": {"max_new_tokens": 8}}


def pip_environment(site: Path) -> dict[str, str]:
    """Environment in which ``pip install .`` installs offline, without dependencies and into ``site``."""
    return os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(site),
        "PIP_TARGET": str(site),
        "PIP_UPGRADE": "1",
        "PIP_NO_DEPS": "1",
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


def copy_example(folder: Path) -> Path:
    """The example, so that building it leaves nothing in the tree."""
    for path in EXAMPLE.rglob("*"):
        if path.suffix in {".py", ".toml", ".md"} and "build" not in path.parts:
            target = folder / path.relative_to(EXAMPLE)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site")
    folder = copy_example(tmp_path_factory.mktemp("example"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", str(folder)]
    subprocess.run(pip, check=True, env=pip_environment(site), timeout=120)
    return site


def test_it_serves_the_demo_model_beside_the_server(site: Path, tmp_path: Path) -> None:
    (serve,) = (block for block in blocks() if block.label == "serve")
    program, *flags = shlex.split(serve.text)
    assert program == "tgi-serve"
    with ServerProcess(tmp_path / "log", *flags, env={"PYTHONPATH": str(site)}) as server:
        assert "example device" in server.log
        reply = httpx.post(f"{server.url}/generate", json=BODY, timeout=60).json()
    assert "Paris" in reply["generated_text"]


def test_it_passes_the_kit(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(site)
    result = run_kit(tmp_path, "example", "--tgi-quick", "-k", "rms_norm or test_plugin or neighbours or llama")
    assert (result.exit_code, result.failed) == (0, {})
    assert len(result.passed) > 15


def test_its_device_that_compiles_passes_the_kit(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(site)
    result = run_kit(tmp_path, "example-static", "--tgi-quick", "-k", "compile or test_plugin or neighbours or llama")
    assert (result.exit_code, result.failed) == (0, {})
    assert {"test_compiled_steps", "test_no_step_waits_for_a_compiler"} <= set(result.passed)


def test_the_page_builds_the_example(tmp_path: Path) -> None:
    """Every block that names a file, in order, gives the example's files."""
    for block in blocks():
        if block.language in {"python", "toml"}:
            block.write(tmp_path)
    written = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*.*") if path.is_file()}
    assert {name: (EXAMPLE / name).read_text() for name in written} == written
    code = {path.relative_to(EXAMPLE) for path in EXAMPLE.rglob("*.py") if "build" not in path.parts}
    assert set(written) == code | {Path("pyproject.toml")}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_page_from_top_to_bottom(tmp_path: Path) -> None:
    """Files are written and commands run where they stand, in a folder that is empty at first."""
    folder, site = tmp_path / "folder", tmp_path / "site"
    folder.mkdir()
    environment = pip_environment(site)
    for block in blocks():
        if block.label == "serve":
            with ServerProcess(tmp_path / "log", *shlex.split(block.text)[1:], env={"PYTHONPATH": str(site)}) as server:
                reply = httpx.post(f"{server.url}/generate", json=BODY, timeout=60).json()
            assert "Paris" in reply.get("generated_text", ""), reply
        elif block.language == "bash":
            # pytest is there; nothing is fetched here.
            commands = block.text.replace("pip install pytest\n", "")
            subprocess.run(["bash", "-eu", "-c", commands], check=True, cwd=folder, env=environment, timeout=900)
        else:
            block.write(folder)
    assert (folder / "tgi_example" / "kit_results_example.json").exists()
