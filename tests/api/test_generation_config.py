"""The model's defaults of sampling on every route that generates."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.api import MODEL_ID, make_state, open_api
from tgi_core.requests import TextTokenizer
from tgi_core.sampling.defaults import SamplingDefaults

MESSAGES = [{"role": "user", "content": "Hi"}]
ADVISED = SamplingDefaults(do_sample=True, temperature=0.25, top_k=7)
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("/", {"inputs": "x"}),
    ("/generate", {"inputs": "x", "parameters": {"max_new_tokens": 2}}),
    ("/generate_stream", {"inputs": "x"}),
    ("/v1/completions", {"model": MODEL_ID, "prompt": "x", "max_tokens": 2}),
    ("/v1/chat/completions", {"model": MODEL_ID, "messages": MESSAGES}),
    ("/v1/messages", {"model": MODEL_ID, "messages": MESSAGES, "max_tokens": 4}),
    ("/v1/responses", {"model": MODEL_ID, "input": "Hi"}),
]


@pytest.mark.parametrize(("route", "body"), CALLS, ids=[route for route, _ in CALLS])
def test_what_a_request_does_not_name_is_the_models(tokenizer: TextTokenizer, route: str, body: dict[str, Any]) -> None:
    with open_api(make_state(tokenizer, defaults=ADVISED)) as api:
        assert api.post(route, body).status_code == 200
        (submitted,) = api.engine.submitted
        assert submitted.sampling.do_sample
        assert (submitted.sampling.temperature, submitted.sampling.top_k) == (0.25, 7)
