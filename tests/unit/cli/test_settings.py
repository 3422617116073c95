from __future__ import annotations

from pathlib import Path

import pytest

from tgi_api.cli.settings import ServeSettings, check_settings, make_config
from tgi_core.config import ApiConfig, EngineConfig
from tgi_core.errors import ExitCode

MODEL_DIR = Path("/models/m")


def causes(**given: object) -> list[str]:
    settings = ServeSettings(model_id="m", **given)  # type: ignore[arg-type]
    return [problem.cause for problem in check_settings(settings)]


def test_a_model_is_enough() -> None:
    assert causes() == []


def test_a_server_without_a_model_is_refused() -> None:
    [problem] = check_settings(ServeSettings())
    assert problem.exit_code is ExitCode.USAGE
    assert "--model-id demo" in problem.fix
    assert check_settings(ServeSettings(weights_cache_override=MODEL_DIR)) == []


def test_both_names_of_the_longest_input_are_refused() -> None:
    [cause] = causes(max_input_tokens=10, max_input_length=10)
    assert "--max-input-length" in cause


@pytest.mark.parametrize("name", ["max_input_tokens", "max_input_length"])
def test_the_longest_input_must_leave_room_for_output(name: str) -> None:
    [cause] = causes(**{name: 10}, max_total_tokens=10)
    assert cause == "--max-input-tokens (10) must be below --max-total-tokens (10)."
    assert causes(**{name: 9}, max_total_tokens=10) == []


def test_without_chunking_the_longest_input_must_fit_one_step() -> None:
    limits = {"max_input_tokens": 4096, "max_batch_prefill_tokens": 2048}
    assert causes(**limits) == []
    [cause] = causes(**limits, prefill_chunking=False)
    assert "(4096) must fit into --max-batch-prefill-tokens (2048)" in cause
    assert causes(**limits | {"max_batch_prefill_tokens": 4096}, prefill_chunking=False) == []


def test_the_kv_cache_must_hold_the_longest_sequence() -> None:
    [cause] = causes(max_total_tokens=4096, max_batch_total_tokens=4095)
    assert "--max-total-tokens (4096) must be at most --max-batch-total-tokens (4095)" in cause
    [cause] = causes(max_input_tokens=4095, max_batch_total_tokens=4095)
    assert "--max-input-tokens" in cause
    assert causes(max_input_tokens=4095, max_total_tokens=4096, max_batch_total_tokens=4096) == []


def test_several_problems_are_told_together() -> None:
    assert len(check_settings(ServeSettings(max_input_tokens=9, max_input_length=9, max_total_tokens=9))) == 3


@pytest.mark.parametrize(("slots", "admitted"), [(1, 128), (32, 128), (33, 132), (64, 256)])
def test_admission_follows_the_slots(slots: int, admitted: int) -> None:
    assert ServeSettings(max_batch_size=slots).admitted_requests == admitted


def test_an_explicit_admission_limit_is_kept() -> None:
    assert ServeSettings(max_batch_size=64, max_concurrent_requests=3).admitted_requests == 3


def test_defaults_are_those_of_the_configuration() -> None:
    config = make_config(ServeSettings(model_id="m"), backend="cpu", model_dir=MODEL_DIR, port=3000)
    assert config.engine == EngineConfig(backend="cpu", dtype="auto")
    assert config.api == ApiConfig(max_concurrent_requests=256)


def test_every_setting_reaches_the_configuration() -> None:
    settings = ServeSettings(
        model_id="org/name",
        revision="abc",
        served_model_name=("one", "two"),
        tokenizer_config_path=Path("/t.json"),
        chat_template=Path("/c.jinja"),
        load_format="dummy",
        dtype="float32",
        cuda_memory_fraction=0.5,
        kv_cache_memory=1024,
        max_batch_total_tokens=4096,
        block_size=256,
        attention="flash-attn",
        cpu_threads=3,
        max_batch_size=5,
        max_batch_prefill_tokens=77,
        max_concurrent_requests=6,
        prefix_caching=False,
        prefill_chunking=False,
        max_input_length=7,
        max_total_tokens=8,
        max_best_of=9,
        max_stop_sequences=10,
        max_top_n_tokens=11,
        max_client_batch_size=12,
        payload_limit=13,
        watermark_gamma=0.25,
        watermark_delta=3.0,
        grammar_engine="other",
        hostname="::1",
        api_key="key",
        aip_predict_route="/predict",
        aip_health_route="/alive",
        compute_type="mine",
        cors_allow_origin=("http://a",),
        validation_workers=14,
        graceful_termination_timeout=15.0,
        json_output=True,
        log_level="debug",
    )
    config = make_config(settings, backend="cpu", model_dir=MODEL_DIR, port=81)
    assert config.model.model_id == "org/name"
    assert config.model.model_dir == MODEL_DIR
    assert config.model.revision == "abc"
    assert config.model.tokenizer_config_path == Path("/t.json")
    assert config.model.chat_template == Path("/c.jinja")
    assert config.engine == EngineConfig(
        backend="cpu",
        dtype="float32",
        load_format="dummy",
        max_slots=5,
        max_step_tokens=77,
        max_input_tokens=7,
        max_total_tokens=8,
        kv_cache_bytes=1024,
        kv_cache_tokens=4096,
        block_size=256,
        attention="flash-attn",
        memory_fraction=0.5,
        prefix_cache=False,
        chunked_prefill=False,
        cpu_threads=3,
        grammar_engine="other",
    )
    assert config.api == ApiConfig(
        hostname="::1",
        port=81,
        max_concurrent_requests=6,
        max_best_of=9,
        max_stop_sequences=10,
        max_top_n_tokens=11,
        max_client_batch_size=12,
        watermark_gamma=0.25,
        watermark_delta=3.0,
        validation_workers=14,
        payload_limit=13,
        api_key="key",
        served_model_names=("one", "two"),
        predict_route="/predict",
        health_route="/alive",
        compute_type="mine",
        cors_allow_origin=("http://a",),
        graceful_termination_timeout_s=15.0,
        json_output=True,
        log_level="debug",
    )


def test_without_grammar_support_there_is_no_engine_for_it() -> None:
    settings = ServeSettings(model_id="m", disable_grammar_support=True, grammar_engine="other")
    config = make_config(settings, backend="cpu", model_dir=MODEL_DIR, port=1)
    assert config.engine.grammar_engine is None


def test_a_printed_configuration_hides_the_key() -> None:
    config = make_config(ServeSettings(model_id="m", api_key="s3cret"), backend="cpu", model_dir=MODEL_DIR, port=3000)
    assert "s3cret" not in repr(config)
    assert "api_key='<hidden>'" in repr(config)
    assert "api_key=None" in repr(ApiConfig())
