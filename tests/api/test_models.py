"""``/v1/models/{model}`` and ``/v1/embeddings``."""

from __future__ import annotations

import pytest

from tests.support.api import MODEL_ID, Api, error_message, make_state, open_api
from tgi_core.requests import TextTokenizer


def test_the_served_model_by_its_names(tokenizer: TextTokenizer) -> None:
    with open_api(make_state(tokenizer, served_model_names=("short",))) as api:
        for name in (MODEL_ID, "short"):
            assert api.http.get(f"/v1/models/{name}").json() == {
                "id": name,
                "object": "model",
                "created": 0,
                "owned_by": MODEL_ID,
            }


@pytest.mark.parametrize("name", ["other", "tests", "tests/tiny/x", "%20", "é"])
def test_other_models_are_not_found(shared_api: Api, name: str) -> None:
    reply = shared_api.http.get(f"/v1/models/{name}")
    assert (reply.status_code, reply.json()["error_type"]) == (404, "model_not_found")
    assert reply.json()["error"]["code"] == "model_not_found"
    assert f"`{MODEL_ID}`" in error_message(reply)


def test_embeddings_are_refused_readably(shared_api: Api) -> None:
    reply = shared_api.post("/v1/embeddings", {"input": "x", "model": "y"})
    assert reply.status_code == 422
    assert "no embeddings" in error_message(reply)
