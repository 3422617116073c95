"""``/info``, ``/v1/models`` and health."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.api import MODEL_ID, Api, make_state, open_api
from tgi_core.requests import TextTokenizer


def test_info_has_the_keys_of_all_versions(api: Api) -> None:
    assert api.http.get("/info").json() == {
        "model_id": MODEL_ID,
        "model_sha": None,
        "model_dtype": "torch.float32",
        "model_device_type": "Test Device",
        "model_pipeline_tag": None,
        "max_concurrent_requests": 128,
        "max_best_of": 2,
        "max_stop_sequences": 4,
        "max_input_tokens": 100,
        "max_input_length": 100,
        "max_total_tokens": 128,
        "max_batch_total_tokens": 4096,
        "max_batch_prefill_tokens": 64,
        "max_batch_size": 8,
        "waiting_served_ratio": 0.0,
        "max_waiting_tokens": 0,
        "validation_workers": 2,
        "max_client_batch_size": 4,
        "router": "tgi-serve",
        "version": "0.1.0",
        "sha": None,
        "docker_label": None,
    }


def test_the_commit_of_a_hub_repository(tokenizer: TextTokenizer) -> None:
    state = make_state(tokenizer)
    for model_dir, sha in (("hub/models--a--b/snapshots/0123abc", "0123abc"), ("/models/b", "main")):
        model = replace(state.config.model, revision="main", model_dir=Path(model_dir))
        state.config = replace(state.config, model=model)
        with open_api(state) as api:
            assert api.http.get("/info").json()["model_sha"] == sha


def test_every_name_of_the_model_is_listed_its_id_first(tokenizer: TextTokenizer) -> None:
    with open_api(make_state(tokenizer, served_model_names=("one", MODEL_ID, "two"))) as api:
        models = api.http.get("/v1/models").json()["data"]
        assert [model["id"] for model in models] == [MODEL_ID, "one", "two"]
        assert api.http.get("/info").json()["model_id"] == MODEL_ID


@pytest.mark.parametrize(("asked", "told"), [("one", "one"), ("gpt-4o", "gpt-4o"), ("tgi", MODEL_ID), (None, MODEL_ID)])
def test_any_model_is_accepted_and_echoed(api: Api, asked: str | None, told: str) -> None:
    body = {"model": asked, "prompt": "x", "messages": [{"role": "user", "content": "x"}]}
    for path in ("/v1/completions", "/v1/chat/completions"):
        assert api.post(path, body).json()["model"] == told


def test_the_compute_type_can_be_given(tokenizer: TextTokenizer) -> None:
    for given, told in ((None, "1-test-device"), ("gpu+optimized", "gpu+optimized")):
        with open_api(make_state(tokenizer, compute_type=given)) as api:
            assert api.post("/generate", {"inputs": "x"}).headers["x-compute-type"] == told


def test_the_one_model(api: Api) -> None:
    assert api.http.get("/v1/models").json() == {
        "object": "list",
        "data": [{"id": MODEL_ID, "object": "model", "created": 0, "owned_by": MODEL_ID}],
    }


@pytest.mark.parametrize("path", ["/", "/health", "/health/ready", "/ping"])
def test_health(api: Api, path: str) -> None:
    reply = api.http.get(path)
    assert (reply.status_code, reply.content) == (200, b"")
    assert api.http.head(path).status_code == 200
    api.engine.engine_down("the engine was killed by signal 9")
    reply = api.http.get(path)
    assert reply.status_code == 503
    assert reply.json() == {"error": "unhealthy: the engine was killed by signal 9", "error_type": "healthcheck"}


def test_liveness_does_not_depend_on_an_engine(api: Api) -> None:
    api.engine.engine_down("the engine was killed by signal 9")
    assert api.http.get("/health/live").status_code == 200
    assert api.http.head("/health/live").status_code == 200


def test_a_suspected_engine_is_not_healthy_but_still_served(api: Api) -> None:
    api.engine.engine_suspect("no sign of life")
    assert api.http.get("/health").status_code == 503
    assert api.post("/generate", {"inputs": "x"}).status_code == 200
