"""``/info``, ``/v1/models`` and health."""

from __future__ import annotations

import pytest

from tests.support.api import MODEL_ID, Api


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


def test_the_one_model(api: Api) -> None:
    assert api.http.get("/v1/models").json() == {
        "object": "list",
        "data": [{"id": MODEL_ID, "object": "model", "created": 0, "owned_by": MODEL_ID}],
    }


@pytest.mark.parametrize("path", ["/", "/health", "/ping"])
def test_health(api: Api, path: str) -> None:
    reply = api.http.get(path)
    assert (reply.status_code, reply.content) == (200, b"")
    assert api.http.head(path).status_code == 200
    api.engine.engine_down("the engine was killed by signal 9")
    reply = api.http.get(path)
    assert reply.status_code == 503
    assert reply.json() == {"error": "unhealthy: the engine was killed by signal 9", "error_type": "healthcheck"}


def test_a_suspected_engine_is_not_healthy_but_still_served(api: Api) -> None:
    api.engine.engine_suspect("no sign of life")
    assert api.http.get("/health").status_code == 503
    assert api.post("/generate", {"inputs": "x"}).status_code == 200
