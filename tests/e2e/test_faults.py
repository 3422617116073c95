"""Processes die; clients get told, and the server lives on.

One test kills a real engine. What the server's processes do about each other does not depend on what computes: the
other tests run the null backend, a step every 20 ms, which starts faster and takes the same time everywhere.
"""

from __future__ import annotations

import concurrent.futures
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil

from tests.support.plugins import write_distribution
from tests.support.server import ServerProcess, wait_for_end

LONG = {"inputs": "Count: 1, 2, 3,", "parameters": {"max_new_tokens": 2000}}
SHORT = {"inputs": "Count: 1, 2, 3,", "parameters": {"max_new_tokens": 50}}
"""A second of the paced backend."""


@contextmanager
def paced_server(folder: Path) -> Iterator[ServerProcess]:
    """A server on ``PACED_BACKEND``."""
    site = write_distribution(folder / "site", "tgi-paced", "tgi_paced", PACED_BACKEND)
    flags = ("--model-id", "demo", "--backend", "paced")
    with ServerProcess(folder / "log", *flags, env={"PYTHONPATH": str(site)}) as server:
        yield server


def wait_for_batch(server: ServerProcess, size: int) -> None:
    """Until so many requests run."""
    while server.gauge("tgi_batch_current_size") < size:
        time.sleep(0.01)


def ask(url: str) -> tuple[int, str]:
    reply = httpx.post(f"{url}/generate", json=LONG, timeout=60)
    return reply.status_code, reply.text


def stream(url: str) -> list[str]:
    with httpx.stream("POST", f"{url}/generate_stream", json=LONG, timeout=60) as reply:
        return [line for line in reply.iter_lines() if line.startswith("data:")]


def wait_for_health(server: ServerProcess, status: int, timeout_s: float) -> float:
    started = time.monotonic()
    while server.health() != status:
        assert time.monotonic() - started < timeout_s, f"/health did not turn {status}"
        time.sleep(0.02)
    return time.monotonic() - started


def test_killed_engine_under_load(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "log", "--model-id", "demo") as server:
        engine = server.child("engine")
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(ask, server.url) for _ in range(4)]
            streamed = [pool.submit(stream, server.url) for _ in range(4)]
            wait_for_batch(server, 8)
            os.kill(engine.pid, signal.SIGKILL)
            assert wait_for_health(server, 503, timeout_s=5) < 2
            refused = httpx.post(f"{server.url}/generate", json=LONG, timeout=10)
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) > 0
            assert refused.json().keys() == {"error", "error_type"}
            for future in asked:
                status, text = future.result(timeout=30)
                assert status == 424
                assert "SIGKILL" in text
            for future in streamed:
                lines = future.result(timeout=30)
                errors = [line for line in lines if '"error"' in line]
                assert errors == lines[-1:]
                assert "SIGKILL" in errors[0]
        wait_for_health(server, 200, timeout_s=60)
        short = {"inputs": "The capital of France is", "parameters": {"max_new_tokens": 4}}
        reply = httpx.post(f"{server.url}/generate", json=short, timeout=60)
        assert "Paris" in reply.json()["generated_text"]
        assert server.gauge("tgi_batch_current_size") == 0


def test_stopped_engine_is_noticed_and_recovers(tmp_path: Path) -> None:
    with paced_server(tmp_path) as server:
        engine = server.child("engine")
        os.kill(engine.pid, signal.SIGSTOP)
        assert wait_for_health(server, 503, timeout_s=5) < 2.5
        os.kill(engine.pid, signal.SIGCONT)
        wait_for_health(server, 200, timeout_s=5)
        assert httpx.post(f"{server.url}/generate", json=SHORT, timeout=60).status_code == 200


def test_killed_supervisor_leaves_nothing_behind(tmp_path: Path) -> None:
    # Addresses of sockets are short, so the folder for temporary files must be too.
    with tempfile.TemporaryDirectory() as folder:
        flags = ("--model-id", "demo", "--backend", "null")
        with ServerProcess(tmp_path / "log", *flags, env={"TMPDIR": folder}) as server:
            children = psutil.Process(server.pid).children(recursive=True)
            assert len(children) >= 2
            assert list(Path(folder).glob("tgi-serve-*"))
            os.kill(server.pid, signal.SIGKILL)
            assert wait_for_end(children, timeout_s=15) == []
        assert not list(Path(folder).glob("tgi-serve-*"))


def test_a_killed_api_process_ends_the_server_though_its_child_hangs(tmp_path: Path) -> None:
    grammar = {"type": "regex", "value": "[a-z]+"}
    body = {"inputs": "a", "parameters": {"max_new_tokens": 2, "grammar": grammar}}
    with paced_server(tmp_path) as server:
        assert httpx.post(f"{server.url}/generate", json=body, timeout=60).status_code == 200
        api, supervisor = server.child("api"), psutil.Process(server.pid)
        (helper,) = api.children()
        helper.suspend()
        try:
            api.kill()
            assert wait_for_end([supervisor], timeout_s=10) == []
        finally:
            helper.kill()
        assert "the API process ended" in server.log


def test_sigterm_lets_running_requests_finish(tmp_path: Path) -> None:
    with paced_server(tmp_path) as server:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            running = pool.submit(httpx.post, f"{server.url}/generate", json=SHORT, timeout=60)
            wait_for_batch(server, 1)
            assert server.stop() == []
            reply = running.result(timeout=60)
        assert reply.status_code == 200
        assert reply.json()["generated_text"]


def test_an_engine_that_dies_while_the_server_stops_is_told(tmp_path: Path) -> None:
    with paced_server(tmp_path) as server:
        engine = server.child("engine")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            running = pool.submit(ask, server.url)
            wait_for_batch(server, 1)
            os.kill(server.pid, signal.SIGTERM)
            time.sleep(0.3)
            os.kill(engine.pid, signal.SIGKILL)
            status, text = running.result(timeout=10)
        assert status == 424
        assert "SIGKILL" in text


def test_a_second_signal_shortens_the_drain(tmp_path: Path) -> None:
    with paced_server(tmp_path) as server:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            running = pool.submit(httpx.post, f"{server.url}/generate", json=LONG, timeout=60)
            wait_for_batch(server, 1)
            os.kill(server.pid, signal.SIGTERM)
            time.sleep(0.5)
            assert not running.done()
            os.kill(server.pid, signal.SIGTERM)
            reply = running.result(timeout=5)
        assert reply.status_code in {424, 503}
        assert "shutting down" in reply.json()["error"]
        assert "received SIGTERM again" in server.log


def test_sigterm_to_every_process_still_drains(tmp_path: Path) -> None:
    with paced_server(tmp_path) as server:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            running = pool.submit(httpx.post, f"{server.url}/generate", json=SHORT, timeout=60)
            wait_for_batch(server, 1)
            for process in [psutil.Process(server.pid), server.child("engine"), server.child("api")]:
                process.send_signal(signal.SIGTERM)
            reply = running.result(timeout=60)
        assert reply.status_code == 200
        assert reply.json()["generated_text"]


def test_a_device_that_fails_or_is_full_is_a_fault_of_the_replica(tmp_path: Path) -> None:
    """What torch raises becomes these errors in every shard, as the conformance kit checks."""
    with paced_server(tmp_path) as server:
        long = {"inputs": "word " * 100, "parameters": {"max_new_tokens": 2}}
        failed = httpx.post(f"{server.url}/generate", json=long, timeout=30)
        assert failed.status_code == 424
        assert "no memory on its device" in failed.json()["error"]
        assert "--cuda-memory-fraction" in server.log
        wait_for_health(server, 200, timeout_s=60)
        longer = {"inputs": "word " * 250, "parameters": {"max_new_tokens": 2}}
        failed = httpx.post(f"{server.url}/generate", json=longer, timeout=30)
        assert failed.status_code == 424
        assert "device failed" in failed.json()["error"]
        assert "fell off the bus" in server.log
        wait_for_health(server, 200, timeout_s=60)
        assert httpx.post(f"{server.url}/generate", json=SHORT, timeout=60).status_code == 200


PACED_BACKEND = '''
"""A step every 20 ms; a prompt of more than 64 tokens finds no memory, and one of more than 200 no device."""
from tgi_core.contract import BackendInfo
from tgi_core.errors import DeviceLostError, DeviceMemoryError
from tgi_core.hookspecs import hookimpl
from tgi_core.testing.null_backend import NullBackend, NullCosts, NullShard


class PacedShard(NullShard):
    _longest = 0

    def launch(self, plan):
        self._longest = max(self._longest, *plan.q_lens)
        return super().launch(plan)

    def collect(self, ticket):
        if self._longest > 200:
            raise DeviceLostError("the device fell off the bus")
        if self._longest > 64:
            raise DeviceMemoryError("tried to allocate 1.00 GiB")
        return super().collect(ticket)


class PacedBackend(NullBackend):
    @property
    def info(self):
        return BackendInfo(name="paced", title="a device that takes its time", priority=-1, simulated=True)

    def create_shard(self, spec):
        return PacedShard(spec, NullCosts(step_ms=20))


@hookimpl
def tgi_backends():
    return [PacedBackend()]
'''
