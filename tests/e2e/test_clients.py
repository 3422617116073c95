"""The clients people already use do a plain and a streamed call each."""

from __future__ import annotations

import json
import warnings

import pytest
from huggingface_hub import InferenceClient
from openai import OpenAI

from tests.support.server import ServerProcess

MESSAGES = [{"role": "user", "content": "Who wrote Hamlet?"}]


def test_text_generation(server: ServerProcess) -> None:
    with warnings.catch_warnings():
        # The client was written for pydantic 1; its deprecation warnings are not ours.
        warnings.simplefilter("ignore")
        from text_generation import Client
        from text_generation.errors import ValidationError

        client = Client(server.url, timeout=60)
        plain = client.generate("The capital of France is", max_new_tokens=6)
        assert "Paris" in plain.generated_text
        assert plain.details is not None
        assert len(plain.details.tokens) == 6
        pieces, last = [], None
        for event in client.generate_stream("The capital of France is", max_new_tokens=6):
            pieces.append(event.token.text)
            last = event.generated_text
        assert "".join(pieces) == last == plain.generated_text
        with pytest.raises(ValidationError):
            client.generate("x", max_new_tokens=100_000_000, truncate=0x7FFFFFFF)


def test_huggingface_hub(server: ServerProcess) -> None:
    client = InferenceClient(model=server.url, timeout=60)
    plain = client.text_generation("The capital of France is", max_new_tokens=6, details=True)
    assert "Paris" in plain.generated_text
    streamed = "".join(client.text_generation("The capital of France is", max_new_tokens=6, stream=True))
    # Route "/" puts the prompt in front unless asked not to, as TGI does for a text-generation model.
    assert plain.generated_text == "The capital of France is" + streamed
    chat = client.chat_completion(MESSAGES, max_tokens=16, temperature=0)
    assert "Shakespeare" in (chat.choices[0].message.content or "")
    deltas = [
        chunk.choices[0].delta.content or ""
        for chunk in client.chat_completion(MESSAGES, max_tokens=16, temperature=0, stream=True)
        if chunk.choices
    ]
    assert "".join(deltas) == chat.choices[0].message.content


def test_openai(server: ServerProcess) -> None:
    with OpenAI(base_url=f"{server.url}/v1", api_key="unused", timeout=60) as client:
        chat = client.chat.completions.create(model="tgi", messages=MESSAGES, max_tokens=16, temperature=0)
        assert "Shakespeare" in (chat.choices[0].message.content or "")
        stream = client.chat.completions.create(
            model="tgi",
            messages=MESSAGES,
            max_tokens=16,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == chat.choices[0].message.content
        assert chunks[-1].usage == chat.usage
        completion = client.completions.create(model="tgi", prompt="1, 2, 3, 4,", max_tokens=6, temperature=0)
        assert "5" in completion.choices[0].text
        pieces = client.completions.create(model="tgi", prompt="1, 2, 3, 4,", max_tokens=6, temperature=0, stream=True)
        assert "".join(piece.choices[0].text for piece in pieces if piece.choices) == completion.choices[0].text
        assert next(iter(client.models.list())).id == "demo"


def test_openai_reads_choices_and_logprobs(server: ServerProcess) -> None:
    with OpenAI(base_url=f"{server.url}/v1", api_key="unused", timeout=60) as client:
        chat = client.chat.completions.create(
            model="tgi", messages=MESSAGES, max_tokens=8, n=2, seed=1, logprobs=True, top_logprobs=3
        )
        assert [choice.index for choice in chat.choices] == [0, 1]
        for choice in chat.choices:
            assert choice.logprobs is not None
            assert choice.logprobs.content is not None
            assert [len(entry.top_logprobs) for entry in choice.logprobs.content] == [3] * 8
            assert all(entry.logprob <= 0 for entry in choice.logprobs.content)
        completion = client.completions.create(
            model="tgi", prompt="1, 2, 3, 4,", max_tokens=2, temperature=0, echo=True, logprobs=1
        )
        columns = completion.choices[0].logprobs
        assert columns is not None
        assert columns.token_logprobs is not None
        assert "".join(columns.tokens or []) == completion.choices[0].text
        # A sequence that counts is more likely than chance in all but its beginning.
        assert sum(columns.token_logprobs[3:]) / len(columns.token_logprobs[3:]) > -1.0


def test_openai_reads_structured_output(server: ServerProcess) -> None:
    schema = {"type": "object", "properties": {"author": {"enum": ["Marlowe", "Shakespeare"]}}, "required": ["author"]}
    with OpenAI(base_url=f"{server.url}/v1", api_key="unused", timeout=60) as client:
        chat = client.chat.completions.create(
            model="tgi",
            messages=MESSAGES,
            max_tokens=48,
            temperature=0,
            response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}},
        )
        assert json.loads(chat.choices[0].message.content or "") == {"author": "Shakespeare"}
        assert chat.choices[0].finish_reason == "stop"
