from __future__ import annotations

from collections.abc import Iterable

import pluggy
import pytest

from tgi_api.cli.serve import choose_backend
from tgi_api.cli.settings import ServeSettings
from tgi_core import hookspecs
from tgi_core.contract import Backend, BackendInfo, Capabilities, Device, DeviceInfo, Probe
from tgi_core.errors import ExitCode, StartupError
from tgi_core.hookspecs import PROJECT_NAME, hookimpl
from tgi_core.plugins import Plugins


class Abacus(Backend):
    """A backend that computes in two types and counts how often it is asked for them."""

    asked = 0
    info = BackendInfo(name="abacus", title="beads on rods")

    def probe(self) -> Probe:
        return Probe(devices=(DeviceInfo(0, "rods", 10),))

    def capabilities(self) -> Capabilities:
        self.asked += 1
        return Capabilities(dtypes=("bfloat16", "float32"))

    def open_device(self, local_index: int) -> Device:
        raise NotImplementedError


class Plugin:
    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    @hookimpl
    def tgi_backends(self) -> Iterable[Backend]:
        return [self.backend]


@pytest.fixture
def abacus() -> Abacus:
    return Abacus()


@pytest.fixture
def plugins(abacus: Abacus) -> Plugins:
    manager = pluggy.PluginManager(PROJECT_NAME)
    manager.add_hookspecs(hookspecs)
    manager.register(Plugin(abacus))
    return Plugins(manager, ())


def test_a_type_that_the_backend_has(plugins: Plugins, abacus: Abacus) -> None:
    assert choose_backend(plugins, ServeSettings(dtype="float32")) is abacus


def test_a_type_that_the_backend_has_not_is_refused_with_those_it_has(plugins: Plugins) -> None:
    with pytest.raises(StartupError, match="`abacus` does not compute in float16") as refusal:
        choose_backend(plugins, ServeSettings(dtype="float16"))
    assert refusal.value.exit_code is ExitCode.BACKEND
    assert refusal.value.fix == "Use --dtype bfloat16 or float32, or leave it out."


@pytest.mark.parametrize(
    ("given", "cause", "fix"),
    [
        ({"block_size": 64}, "does not take KV blocks of 64 tokens", "--block-size 16,"),
        ({"attention": "flashinfer"}, "has no attention `flashinfer`", "one of: auto, native,"),
    ],
)
def test_what_the_backend_has_not_is_refused_with_what_it_has(
    plugins: Plugins, given: dict[str, object], cause: str, fix: str
) -> None:
    with pytest.raises(StartupError, match=cause) as refusal:
        choose_backend(plugins, ServeSettings(**given))  # type: ignore[arg-type]
    assert refusal.value.exit_code is ExitCode.BACKEND
    assert fix in refusal.value.fix


def test_attention_and_block_size_that_the_backend_has(plugins: Plugins, abacus: Abacus) -> None:
    assert choose_backend(plugins, ServeSettings(block_size=16, attention="native")) is abacus


def test_without_a_type_the_backend_is_not_asked_what_it_can_do(plugins: Plugins, abacus: Abacus) -> None:
    assert choose_backend(plugins, ServeSettings(backend="abacus")) is abacus
    assert abacus.asked == 0
