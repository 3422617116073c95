from __future__ import annotations

from collections.abc import Mapping

import pytest

from tgi_api.cli.arguments import Arguments, BackendValue, Given, read_arguments
from tgi_api.cli.launcher_options import LAUNCHER_OPTIONS
from tgi_api.cli.options import Group, Option
from tgi_api.cli.values import choice
from tgi_core.errors import ExitCode


def read(given: Mapping[str, Given] | None = None, environ: Mapping[str, str] | None = None) -> Arguments:
    return read_arguments(LAUNCHER_OPTIONS, given or {}, environ or {})


def test_nothing_given_is_nothing_read() -> None:
    assert read() == Arguments()


def test_flag_wins_over_environment() -> None:
    assert read({"port": "81"}, {"PORT": "80"}).values == {"port": 81}
    assert read({"port": None}, {"PORT": "80"}).values == {"port": 80}


def test_a_switch_off_on_the_command_line_wins_over_the_environment() -> None:
    assert read({"prefix_caching": False}, {"PREFIX_CACHING": "1"}).values == {"prefix_caching": False}


def test_first_variable_of_an_option_wins() -> None:
    environ = {"HF_MODEL_ID": "sagemaker/model", "MODEL_ID": "tgi/model"}
    assert read(environ=environ).values == {"model_id": "tgi/model"}
    del environ["MODEL_ID"]
    assert read(environ=environ).values == {"model_id": "sagemaker/model"}


@pytest.mark.parametrize(("word", "value"), [("true", True), ("0", False), ("YES", True), ("no", False)])
def test_switches_in_the_environment_take_words(word: str, value: bool) -> None:
    assert read(environ={"JSON_OUTPUT": word}).values == {"json_output": value}


def test_an_empty_variable_counts_as_not_set() -> None:
    assert read(environ={"PORT": "", "QUANTIZE": "", "MASTER_ADDR": ""}) == Arguments()


@pytest.mark.parametrize("source", [({"api_key": ""}, {}), ({}, {"API_KEY": ""})])
def test_an_empty_key_is_refused_because_it_would_be_an_open_server(
    source: tuple[dict[str, Given], dict[str, str]],
) -> None:
    arguments = read(*source)
    assert "api_key" not in arguments.values
    [refusal] = arguments.refusals
    assert "must be text that is not empty" in refusal.cause


def test_secrets_are_never_shown() -> None:
    arguments = read({"api_key": "s3cret"}, {"NGROK_AUTHTOKEN": "s3cret", "HF_API_TOKEN": "s3cret"})
    assert arguments.values["api_key"] == "s3cret"
    assert "--api-key=<hidden>" in arguments.shown
    everything_shown = [*arguments.shown, *arguments.warnings, *map(str, arguments.refusals)]
    assert len(arguments.warnings) == 1
    assert "HF_API_TOKEN=<hidden>" in arguments.shown
    assert not any("s3cret" in text for text in everything_shown)


def test_repeated_flags_and_a_comma_list_in_the_environment_are_the_same() -> None:
    expected = {"cors_allow_origin": ("http://a", "http://b")}
    assert read({"cors_allow_origin": ("http://a", "http://b")}).values == expected
    assert read({"cors_allow_origin": ()}, {"CORS_ALLOW_ORIGIN": "http://a, http://b"}).values == expected


def test_a_wrong_value_names_where_it_came_from() -> None:
    from_flag, from_env = read({"port": "x"}).refusals[0], read(environ={"PORT": "x"}).refusals[0]
    assert from_flag.cause == "--port=x must be a whole number from 0 to 65535."
    assert "environment variable PORT" in from_env.fix
    assert from_env.exit_code is ExitCode.USAGE


def test_a_container_name_in_hostname_only_warns() -> None:
    arguments = read(environ={"HOSTNAME": "d34db33fc0de"})
    assert (arguments.values, arguments.refusals) == ({}, [])
    assert len(arguments.warnings) == 1
    assert "HOSTNAME=d34db33fc0de has no effect" in arguments.warnings[0]
    assert read({"hostname": "d34db33fc0de"}).refusals


def test_every_feature_that_is_not_built_is_refused_at_once() -> None:
    arguments = read(
        {"quantize": "awq", "speculate": "2", "kv_cache_dtype": "fp8_e5m2"},
        {"LORA_ADAPTERS": "a/b", "OTLP_ENDPOINT": "http://x:4317"},
    )
    causes = [refusal.cause for refusal in arguments.refusals]
    for name in ("--quantize", "--speculate", "--kv-cache-dtype", "LORA", "OTLP"):
        assert any(cause.startswith(name) and "not supported yet" in cause for cause in causes), name
    assert len(causes) == 5
    assert all(refusal.fix for refusal in arguments.refusals)
    assert "LORA_ADAPTERS=a/b is not supported yet: LoRA adapters." in causes


@pytest.mark.parametrize(
    "neutral",
    [
        {"speculate": "0"},
        {"kv_cache_dtype": "auto"},
        {"usage_stats": "on"},
        {"enable_prefill_logprobs": True},
    ],
)
def test_a_value_that_asks_for_what_is_so_anyway_is_accepted(neutral: dict[str, Given]) -> None:
    arguments = read(neutral)
    assert (arguments.warnings, arguments.refusals, arguments.values) == ([], [], {})


def test_an_option_without_effect_warns_with_the_reason() -> None:
    arguments = read({"disable_custom_kernels": True}, {"MASTER_PORT": "29500", "NGROK": "false"})
    assert arguments.refusals == []
    assert arguments.warnings == [
        "--disable-custom-kernels has no effect. Which kernels run follows from --backend alone.",
        "MASTER_PORT has no effect. There are no shard processes to reach at an address.",
    ]


class TestAnOptionOfOneBackend:
    OPTION = Option(
        flag="--abacus-beads",
        env=("TGI_SERVE_ABACUS_BEADS", "ABACUS_BEADS"),
        metavar="wood|Glass",
        read=choice("wood", "Glass"),
        group=Group.DEVICE,
        help="What they are made of",
        backend="abacus",
    )

    def read(self, given: Mapping[str, Given], environ: Mapping[str, str]) -> Arguments:
        return read_arguments([self.OPTION], given, environ)

    def test_its_value_is_no_setting_of_the_server(self) -> None:
        arguments = self.read({"abacus_beads": "GLASS"}, {"ABACUS_BEADS": "wood"})
        assert arguments.values == {}
        assert arguments.backend_options == {"--abacus-beads": "Glass"}
        assert arguments.sources == {"abacus_beads": "command line"}

    def test_what_gave_it_is_known(self) -> None:
        for variable in self.OPTION.env:
            [value] = self.read({}, {variable: "wood"}).backend_values
            assert value == BackendValue("--abacus-beads", "wood", "abacus", variable)

    def test_a_wrong_value_is_refused_with_its_choices(self) -> None:
        [refusal] = self.read({"abacus_beads": "gold"}, {}).refusals
        assert refusal.cause == "--abacus-beads=gold must be one of wood, Glass."
