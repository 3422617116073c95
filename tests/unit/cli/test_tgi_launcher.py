"""Every flag and variable of TGI's launcher: taken with its meaning, or answered with a warning or a refusal.

``tgi_launcher.json`` is written from TGI's own lists, one entry for each value that has an effect of its own. ``given``
is a value, true for a switch; ``variables`` are all that set it, ``fine`` are values that ask for what is so anyway,
``wrong`` is a value that the flag cannot have.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
import pytest

from tgi_api.cli.arguments import Arguments, read_arguments
from tgi_api.cli.launcher_options import LAUNCHER_OPTIONS
from tgi_api.cli.options import Option


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    flag: str | None
    variables: tuple[str, ...]
    given: str | Literal[True]
    effect: Literal["used", "accepted", "warns", "refused"]
    setting: str = ""
    value: object = None
    fine: tuple[str, ...] = ()
    wrong: str | None = None
    short: str = ""

    def __str__(self) -> str:
        return f"{self.flag or self.variables[0]}={self.given}"


ENTRIES = msgspec.json.decode((Path(__file__).parent / "tgi_launcher.json").read_bytes(), type=list[Entry])
FLAGS = [entry for entry in ENTRIES if entry.flag]


def option_of(entry: Entry) -> Option:
    names = {entry.flag, *entry.variables} - {None}
    [option] = [option for option in LAUNCHER_OPTIONS if names & {option.flag, *option.env}]
    return option


def plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value


def check(entry: Entry, arguments: Arguments) -> None:
    """The given value has its effect, and no other."""
    warned, refused = len(arguments.warnings), len(arguments.refusals)
    assert (warned, refused) == {"warns": (1, 0), "refused": (0, 1)}.get(entry.effect, (0, 0))
    if entry.effect == "used":
        assert list(arguments.values) == [entry.setting]
        value = plain(arguments.values[entry.setting])
        assert value == (tuple(entry.value) if isinstance(entry.value, list) else entry.value)
    else:
        assert arguments.values == {}
    for text in (*arguments.warnings, *map(str, arguments.refusals)):
        assert text.startswith((entry.flag or "-", *entry.variables))
    assert all(refusal.fix for refusal in arguments.refusals)


@pytest.mark.parametrize("entry", FLAGS, ids=str)
def test_the_flag(entry: Entry) -> None:
    option = option_of(entry)
    assert option.short == entry.short
    assert (option.metavar == "") is (entry.given is True)
    given = (entry.given,) if option.repeated and isinstance(entry.given, str) else entry.given
    check(entry, read_arguments(LAUNCHER_OPTIONS, {option.name: given}, {}))


@pytest.mark.parametrize("entry", ENTRIES, ids=str)
def test_each_of_its_variables(entry: Entry) -> None:
    assert set(option_of(entry).env) == set(entry.variables)
    for variable in entry.variables:
        text = "true" if entry.given is True else entry.given
        check(entry, read_arguments(LAUNCHER_OPTIONS, {}, {variable: text}))


@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if entry.fine], ids=str)
def test_values_that_change_nothing_are_accepted_in_silence(entry: Entry) -> None:
    for text in entry.fine:
        arguments = read_arguments(LAUNCHER_OPTIONS, {}, {entry.variables[0]: text})
        assert (arguments.values, arguments.warnings, arguments.refusals) == ({}, [], [])


@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if entry.wrong is not None], ids=str)
def test_a_wrong_value_is_refused(entry: Entry) -> None:
    name, wrong = option_of(entry).name, entry.wrong
    arguments = read_arguments(LAUNCHER_OPTIONS, {name: wrong} if entry.flag else {}, {entry.variables[0]: wrong or ""})
    [refusal] = arguments.refusals
    assert "must be" in refusal.cause
    assert arguments.values == {}


def test_no_option_of_tgi_is_left_out_of_the_list() -> None:
    """Whatever reads a variable that is not our own is in the list, so that the list is complete as the table grows."""
    listed = {variable for entry in ENTRIES for variable in entry.variables}
    known = {variable for option in LAUNCHER_OPTIONS for variable in option.env}
    assert {variable for variable in known - listed if not variable.startswith("TGI_SERVE_")} == set()


def test_a_deployment_written_for_tgi() -> None:
    environ = {
        "MODEL_ID": "org/name",
        "HUGGING_FACE_HUB_TOKEN": "hf_x",
        "HOSTNAME": "tgi-7d9c5b7b5-x2x9k",
        "PORT": "80",
        "MAX_INPUT_LENGTH": "3072",
        "MAX_TOTAL_TOKENS": "4096",
        "MAX_BATCH_PREFILL_TOKENS": "4096",
        "MAX_BATCH_TOTAL_TOKENS": "16384",
        "NUM_SHARD": "1",
    }
    given = {"json_output": True, "port": "8080"}
    arguments = read_arguments(LAUNCHER_OPTIONS, given, environ)
    assert arguments.refusals == []
    assert len(arguments.warnings) == 1
    assert arguments.values == {
        "model_id": "org/name",
        "port": 8080,
        "json_output": True,
        "max_input_length": 3072,
        "max_total_tokens": 4096,
        "max_batch_prefill_tokens": 4096,
        "max_batch_total_tokens": 16384,
        "num_shard": 1,
    }


def test_on_sagemaker_and_vertex_the_platforms_port_goes_before_the_images() -> None:
    for variable in ("SAGEMAKER_BIND_TO_PORT", "AIP_HTTP_PORT"):
        assert read_arguments(LAUNCHER_OPTIONS, {}, {variable: "8080", "PORT": "80"}).values == {"port": 8080}
