"""What a reply is does not depend on who else is being answered: every parameter on, real model, bfloat16."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.support.server import ServerProcess

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "tags", "age"],
}

VARIANTS: tuple[dict[str, Any], ...] = (
    {"do_sample": True, "seed": 1},
    {"temperature": 0.7, "top_k": 40, "seed": 2**64 - 1},
    {"do_sample": True, "top_p": 0.9, "typical_p": 0.8, "repetition_penalty": 1.3, "seed": 3},
    {"repetition_penalty": 1.2, "frequency_penalty": 0.5, "top_n_tokens": 3},
    {"do_sample": True, "watermark": True, "seed": 4, "temperature": 1.4},
    {"grammar": {"type": "json", "value": SCHEMA}, "do_sample": True, "seed": 5},
    {"grammar": {"type": "regex", "value": "[a-f]{4,9}-[0-9]{2}"}},
    {},
)


def body(number: int) -> dict[str, Any]:
    prompt = f"Note {number}. " + "The quick brown fox jumps over the lazy dog. " * (number % 4)
    common = {"max_new_tokens": 6 + number % 7, "details": True}
    return {"inputs": prompt, "parameters": common | VARIANTS[number % len(VARIANTS)]}


def essence(reply: dict[str, Any]) -> tuple[Any, ...]:
    """Everything that must be the same, log-probabilities too."""
    details = reply["details"]
    return (
        reply["generated_text"],
        details["seed"],
        details["finish_reason"],
        details["tokens"],
        details.get("top_tokens"),
    )


@pytest.mark.parametrize("count", [2 * len(VARIANTS), pytest.param(6 * len(VARIANTS), marks=pytest.mark.slow)])
def test_neighbours_change_nothing(server: ServerProcess, count: int) -> None:
    numbers = range(count)

    async def together() -> list[dict[str, Any]]:
        async with httpx.AsyncClient(timeout=180, limits=httpx.Limits(max_connections=64)) as client:

            async def ask(number: int) -> dict[str, Any]:
                # Not all at once, so that rows join and leave a running batch.
                await asyncio.sleep(number % 7 * 0.05)
                reply = await client.post(f"{server.url}/generate", json=body(number))
                assert reply.status_code == 200, reply.text
                return dict(reply.json())

            return await asyncio.gather(*map(ask, numbers))

    crowded = asyncio.run(together())
    for number in numbers:
        alone = httpx.post(f"{server.url}/generate", json=body(number), timeout=60).json()
        assert essence(alone) == essence(crowded[number]), body(number)


def test_choices_share_a_prompt_and_differ_by_their_index(server: ServerProcess) -> None:
    request = {"prompt": "My favourite animal is", "max_tokens": 8, "n": 4, "seed": 11, "temperature": 1.2}
    reply = httpx.post(f"{server.url}/v1/completions", json=request, timeout=60).json()
    texts = [choice["text"] for choice in sorted(reply["choices"], key=lambda choice: choice["index"])]
    assert len(set(texts)) == 4
    assert reply["usage"]["prompt_tokens"] == 4
    again = httpx.post(f"{server.url}/v1/completions", json=request, timeout=60).json()
    assert [choice["text"] for choice in sorted(again["choices"], key=lambda choice: choice["index"])] == texts
    first = httpx.post(f"{server.url}/v1/completions", json=request | {"n": 1}, timeout=60).json()
    assert first["choices"][0]["text"] == texts[0]


MALICIOUS: tuple[dict[str, Any], ...] = (
    {"type": "regex", "value": "(" * 2000 + "a" + ")" * 2000},
    {"type": "regex", "value": "((a{1,1000}){1,1000}){1,1000}b"},
    {"type": "regex", "value": "(a|aa)*(a|aa)*(a|aa)*(a|aa)*c" * 40},
    {"type": "regex", "value": "(?=x)a"},
    {"type": "json", "value": {"type": "string", "minLength": 10**9}},
    {"type": "json", "value": {"type": "array", "items": {"type": "integer"}, "minItems": 10**9}},
    {"type": "json", "value": {"not": {"type": "string"}}},
    {"type": "json", "value": {"$ref": "http://example.com/schema.json"}},
    {
        "type": "json",
        "value": {"type": "object", "properties": {f"p{n}": {"pattern": "(x+x+)+y"} for n in range(300)}},
    },
    {"type": "json", "value": json.loads('{"items":' * 400 + "{}" + "}" * 400)},
)


def test_malicious_grammars_disturb_nobody(server: ServerProcess) -> None:
    async def stream(client: httpx.AsyncClient, number: int, gaps: list[float]) -> str:
        loop = asyncio.get_running_loop()
        request = {"inputs": f"Tale {number}: once", "parameters": {"max_new_tokens": 120}}
        async with client.stream("POST", f"{server.url}/generate_stream", json=request) as reply:
            last = loop.time()
            async for line in reply.aiter_lines():
                if line.startswith("data:"):
                    gaps.append(loop.time() - last)
                    last = loop.time()
                    event = json.loads(line[5:])
                    if event.get("generated_text") is not None:
                        return str(event["generated_text"])
        raise AssertionError("the stream ended without its text")

    async def attack(client: httpx.AsyncClient, grammar: dict[str, Any]) -> tuple[int, float]:
        started = asyncio.get_running_loop().time()
        request = {"inputs": "x", "parameters": {"max_new_tokens": 4, "grammar": grammar}}
        reply = await client.post(f"{server.url}/generate", json=request)
        if reply.status_code == 422:
            assert reply.json()["error_type"] == "validation"
        return reply.status_code, asyncio.get_running_loop().time() - started

    async def run() -> None:
        async with httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_connections=64)) as client:
            gaps: list[float] = []
            streams = [asyncio.create_task(stream(client, number, gaps)) for number in range(4)]
            answers = await asyncio.gather(*(attack(client, grammar) for grammar in MALICIOUS))
            assert all(status in {200, 422} for status, _ in answers), answers
            # Each is decided within its own deadline; several share the helper and wait for one another.
            assert max(seconds for _, seconds in answers) < 60, answers
            texts = await asyncio.gather(*streams)
            assert all(texts)
            assert max(gaps) < 5, "no stream stood still"

    asyncio.run(run())
    assert server.health() == 200
