from __future__ import annotations

from collections.abc import Iterable

import pluggy
import pytest

from tgi_api.cli.arguments import Arguments, BackendValue
from tgi_api.cli.backend_choice import check_backend, choose_world_size
from tgi_api.cli.serve import check_start
from tgi_api.cli.settings import ServeSettings, check_settings
from tgi_core import hookspecs
from tgi_core.contract import Backend, BackendInfo, BackendOption, Capabilities, Device, DeviceInfo, Probe, ShapeMode
from tgi_core.errors import ExitCode, StartupError
from tgi_core.hookspecs import PROJECT_NAME, hookimpl
from tgi_core.plugins import Plugins


class Abacus(Backend):
    """A backend that computes in two types and counts how often it is asked for them."""

    info = BackendInfo(name="abacus", title="beads on rods")
    options = (BackendOption(flag="--abacus-beads", choices=("wood", "glass"), help="What they are made of"),)

    def __init__(self, capabilities: Capabilities | None = None, devices: int = 1) -> None:
        self.asked = 0
        self._capabilities = capabilities or Capabilities(dtypes=("bfloat16", "float32"))
        self._devices = devices

    def probe(self) -> Probe:
        return Probe(devices=tuple(DeviceInfo(index, "rods", 10) for index in range(self._devices)))

    def capabilities(self) -> Capabilities:
        self.asked += 1
        return self._capabilities

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


def plugins_with(backend: Backend) -> Plugins:
    manager = pluggy.PluginManager(PROJECT_NAME)
    manager.add_hookspecs(hookspecs)
    manager.register(Plugin(backend))
    return Plugins(manager, ())


def refusal_of(backend: Backend, **given: object) -> StartupError:
    [refusal] = check_backend(backend, ServeSettings(**given), ())  # type: ignore[arg-type]
    return refusal


def test_what_the_backend_has(abacus: Abacus) -> None:
    assert check_backend(abacus, ServeSettings(dtype="float32", block_size=16, attention="native"), ()) == []


@pytest.mark.parametrize(
    ("given", "cause", "fix"),
    [
        ({"dtype": "float16"}, "`abacus` does not compute in float16", "--dtype bfloat16 or float32, or leave it out."),
        ({"block_size": 64}, "does not take KV blocks of 64 tokens", "--block-size 16,"),
        ({"attention": "flashinfer"}, "has no attention `flashinfer`", "one of: auto, native,"),
        ({"strict_shapes": True}, "compile static shapes, which `abacus` does not", "Leave it out."),
        ({"num_shard": 2}, "`abacus` cannot split a model: it runs on 1 device", "Leave --num-shard and --sharded"),
        ({"sharded": True}, "`abacus` cannot split a model", "Leave --num-shard and --sharded"),
    ],
)
def test_what_the_backend_has_not_is_refused_with_what_it_has(
    abacus: Abacus, given: dict[str, object], cause: str, fix: str
) -> None:
    refusal = refusal_of(abacus, **given)
    assert cause in refusal.cause
    assert refusal.exit_code is ExitCode.BACKEND
    assert fix in refusal.fix


def test_everything_it_has_not_is_told_at_once(abacus: Abacus) -> None:
    settings = ServeSettings(dtype="float16", block_size=64, attention="flashinfer", strict_shapes=True, num_shard=2)
    assert len(check_backend(abacus, settings, ())) == 5


def test_capabilities_that_cannot_be_had(abacus: Abacus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(abacus, "_capabilities")
    assert "its plugin is broken" in refusal_of(abacus, dtype="float32").cause


def test_without_a_wish_the_backend_is_not_asked_what_it_can_do(abacus: Abacus) -> None:
    given = [BackendValue("--abacus-beads", "glass", "abacus", "--abacus-beads")]
    settings = ServeSettings(backend="abacus", num_shard=1, sharded=False)
    assert check_backend(abacus, settings, given) == []
    assert abacus.asked == 0


def test_a_backend_that_compiles_may_be_strict() -> None:
    backend = Abacus(Capabilities(shape_mode=ShapeMode.BUCKETED))
    assert check_backend(backend, ServeSettings(strict_shapes=True), ()) == []
    whole = Abacus(Capabilities(shape_mode=ShapeMode.WHOLE_MODEL))
    assert "--strict-shapes" in refusal_of(whole, strict_shapes=True).cause


class TestSeveralDevices:
    @pytest.mark.parametrize(
        ("given", "size"),
        [
            ({}, 1),
            ({"num_shard": 1}, 1),
            ({"num_shard": 2}, 2),
            ({"sharded": False}, 1),
            ({"sharded": True}, 4),
            ({"sharded": True, "num_shard": 2}, 2),
        ],
    )
    def test_how_many(self, given: dict[str, object], size: int) -> None:
        backend = Abacus(Capabilities(max_world_size=4), devices=4)
        settings = ServeSettings(**given)  # type: ignore[arg-type]
        assert check_settings(ServeSettings(model_id="m", **given)) == []  # type: ignore[arg-type]
        assert check_backend(backend, settings, ()) == []
        assert choose_world_size(backend, settings) == size

    def test_more_than_the_backend_can_do(self) -> None:
        backend = Abacus(Capabilities(max_world_size=4), devices=8)
        for given in ({"num_shard": 8}, {"sharded": True}):
            refusal = refusal_of(backend, **given)
            assert "at most 4 devices, and 8 are asked for" in refusal.cause
            assert refusal.fix == "Use --num-shard 4 or less."

    def test_one_device_cannot_be_split_over(self) -> None:
        refusal = refusal_of(Abacus(Capabilities(max_world_size=4)), sharded=True)
        assert "--sharded true needs several devices, and backend `abacus` finds one" in refusal.cause

    @pytest.mark.parametrize(("sharded", "num_shard"), [(False, 2), (True, 1)])
    def test_a_contradiction(self, sharded: bool, num_shard: int) -> None:
        [problem] = check_settings(ServeSettings(model_id="m", sharded=sharded, num_shard=num_shard))
        assert f"--sharded {str(sharded).lower()} and --num-shard {num_shard} contradict" in problem.cause
        assert problem.exit_code is ExitCode.USAGE


@pytest.mark.parametrize("name", ["null", "auto"])
def test_an_option_of_another_backend_is_refused_with_both_names(abacus: Abacus, name: str) -> None:
    """With "auto" it is the one that is found that counts."""
    other = BackendValue("--rosary-beads", "bone", "rosary", "ROSARY_BEADS")
    arguments = Arguments(backend_values=[other, BackendValue("--abacus-beads", "glass", "abacus", "--abacus-beads")])
    abacus.info = BackendInfo(name="abacus" if name == "auto" else name, title="beads on rods")
    abacus.options = ()
    _, refusals = check_start(arguments, ServeSettings(model_id="m", backend=name), plugins_with(abacus))
    told = [refusal.cause for refusal in refusals if "is an option of backend" in refusal.cause]
    assert f"ROSARY_BEADS=bone is an option of backend `rosary`, and `{abacus.info.name}` is chosen." in told
    assert len(told) == (1 if name == "auto" else 2)
