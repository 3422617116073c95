"""The demo model answers over every route, through plain HTTP."""

from __future__ import annotations

import asyncio
import json
import random
import time

import httpx
import pytest

from tests.support.server import ServerProcess

QUESTION = {"messages": [{"role": "user", "content": "Who wrote Hamlet?"}], "temperature": 0}


def events(response: httpx.Response) -> list[str]:
    """Data of all server-sent events."""
    return [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]


def test_generate_gives_sensible_text(server: ServerProcess) -> None:
    body = {"inputs": "1, 2, 3, 4, 5,", "parameters": {"max_new_tokens": 12, "details": True}}
    reply = httpx.post(f"{server.url}/generate", json=body, timeout=60).json()
    assert reply["generated_text"].startswith(" 6, 7, 8")
    assert reply["details"]["finish_reason"] == "length"
    assert len(reply["details"]["tokens"]) == reply["details"]["generated_tokens"] == 12


def test_chat_streamed_equals_chat(server: ServerProcess) -> None:
    plain = httpx.post(f"{server.url}/v1/chat/completions", json=QUESTION | {"max_tokens": 20}, timeout=60).json()
    assert "Shakespeare" in plain["choices"][0]["message"]["content"]
    streamed = httpx.post(
        f"{server.url}/v1/chat/completions", json=QUESTION | {"max_tokens": 20, "stream": True}, timeout=60
    )
    data = events(streamed)
    assert data[-1] == "[DONE]"
    chunks = [json.loads(item) for item in data[:-1]]
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    assert text == plain["choices"][0]["message"]["content"]


def test_completions_streamed_equals_completions(server: ServerProcess) -> None:
    body = {"prompt": "1, 2, 3, 4, 5,", "max_tokens": 12, "temperature": 0}
    plain = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()
    assert "6, 7, 8" in plain["choices"][0]["text"]
    streamed = httpx.post(f"{server.url}/v1/completions", json=body | {"stream": True}, timeout=60)
    data = events(streamed)
    assert data[-1] == "[DONE]"
    text = "".join(json.loads(item)["choices"][0]["text"] for item in data[:-1])
    assert text == plain["choices"][0]["text"]


@pytest.mark.parametrize("compared", [12, pytest.param(42, marks=pytest.mark.slow)])
def test_64_streams_a_third_leaving_early(server: ServerProcess, compared: int) -> None:
    """Every stream that stays gives its solo text, of which some are asked for; afterwards nothing is held."""

    def body(number: int) -> dict[str, object]:
        prompt = f"Story number {number}. " + "Once upon a time there was a small lamp. " * (1 + number % 9)
        return {"inputs": prompt, "parameters": {"max_new_tokens": 6 + number % 11}}

    async def stream(client: httpx.AsyncClient, number: int, leave_after: int | None) -> str | None:
        async with client.stream("POST", f"{server.url}/generate_stream", json=body(number)) as response:
            assert response.status_code == 200
            count = 0
            async for line in response.aiter_lines():
                if not line.startswith("data:"):
                    continue
                event = json.loads(line.removeprefix("data:"))
                count += 1
                if leave_after is not None and count >= leave_after:
                    return None
                if event["generated_text"] is not None:
                    return str(event["generated_text"])
        raise AssertionError("the stream ended without its text")

    async def run() -> dict[int, str | None]:
        limits = httpx.Limits(max_connections=80)
        async with httpx.AsyncClient(timeout=120, limits=limits) as client:
            leaving = {number: 1 + number % 5 for number in range(0, 64, 3)}
            texts = await asyncio.gather(*(stream(client, number, leaving.get(number)) for number in range(64)))
            return dict(enumerate(texts))

    together = asyncio.run(run())
    stayed = {number: text for number, text in together.items() if text is not None}
    assert len(stayed) == 42
    for number, text in random.Random(0).sample(list(stayed.items()), compared):
        solo = httpx.post(f"{server.url}/generate", json=body(number), timeout=60).json()
        assert solo["generated_text"] == text, number
    names = ("tgi_batch_current_size", "tgi_queue_size", "tgi_kv_blocks_used")
    deadline = time.monotonic() + 5
    while any(server.gauge(name) for name in names):
        assert time.monotonic() < deadline, {name: server.gauge(name) for name in names}
        time.sleep(0.05)
