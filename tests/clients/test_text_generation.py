"""TGI's own Python client."""

from __future__ import annotations

import asyncio

import pytest

from tests.clients.questions import ANSWER, AUTHOR, MESSAGES, PROMPT
from tests.support.server import ServerProcess

# The client was written for pydantic 1; its deprecation warnings are not ours.
pytestmark = pytest.mark.filterwarnings("ignore")


def test_generate(server: ServerProcess) -> None:
    from text_generation import Client

    client = Client(server.url, timeout=60)
    plain = client.generate(PROMPT, max_new_tokens=6, decoder_input_details=True)
    assert ANSWER in plain.generated_text
    assert plain.details is not None
    assert len(plain.details.tokens) == 6
    assert plain.details.prefill[0].logprob is None
    pieces, last = [], None
    for event in client.generate_stream(PROMPT, max_new_tokens=6):
        pieces.append(event.token.text)
        last = event.generated_text
    assert "".join(pieces) == last == plain.generated_text


def test_sampling_parameters(server: ServerProcess) -> None:
    from text_generation import Client

    client = Client(server.url, timeout=60)
    given = {"do_sample": True, "temperature": 0.8, "top_k": 20, "top_p": 0.9, "typical_p": 0.9, "seed": 7}
    first, second = (client.generate("Once upon", max_new_tokens=8, **given) for _ in range(2))
    assert first.generated_text == second.generated_text
    assert first.details is not None
    assert first.details.seed == 7
    best = client.generate("Once upon", max_new_tokens=8, do_sample=True, best_of=2, top_n_tokens=2)
    assert best.details is not None
    assert len(best.details.best_of_sequences or []) == 1


def test_chat(server: ServerProcess) -> None:
    from text_generation import Client

    reply = Client(server.url, timeout=60).chat(MESSAGES, max_tokens=16, temperature=0.0)
    assert AUTHOR in reply.choices[0].message.content


def test_errors(server: ServerProcess) -> None:
    from text_generation import Client
    from text_generation.errors import ValidationError

    with pytest.raises(ValidationError, match="truncate"):
        Client(server.url, timeout=60).generate("x", truncate=0x7FFFFFFF)


def test_async(server: ServerProcess) -> None:
    from text_generation import AsyncClient

    async def ask() -> tuple[str, str]:
        client = AsyncClient(server.url, timeout=60)
        plain = await client.generate(PROMPT, max_new_tokens=6)
        pieces = [event.token.text async for event in client.generate_stream(PROMPT, max_new_tokens=6)]
        return plain.generated_text, "".join(pieces)

    plain, streamed = asyncio.run(ask())
    assert ANSWER in plain
    assert streamed == plain
