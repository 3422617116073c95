"""Every field of every body takes hostile values: each is served or refused readably, alone, and nothing breaks."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.support.api import Api, error_message, make_state, open_api
from tgi_api.schemas import messages as messages_schemas
from tgi_api.schemas import responses as responses_schemas
from tgi_api.schemas.chat import ChatRequest, Message
from tgi_api.schemas.completions import CompletionRequest
from tgi_api.schemas.generate import CompatGenerateRequest, GenerateParameters
from tgi_api.schemas.openai import StreamOptions
from tgi_api.schemas.tokenize import DetokenizeRequest
from tgi_core.requests import TextTokenizer

CHAT = b'"messages":[{"role":"user","content":"x"}]'
MESSAGE = b'"messages":[{"role":"user","content":"x",%b}]'

# Where a struct's fields stand: the route, the rest of the body around them, and the struct.
PLACES: list[tuple[str, bytes, type[msgspec.Struct]]] = [
    ("/", b'{"inputs":"x",%b}', CompatGenerateRequest),
    ("/generate", b'{"inputs":"x","parameters":{%b}}', GenerateParameters),
    ("/generate_stream", b'{"inputs":"x","parameters":{%b}}', GenerateParameters),
    ("/v1/completions", b'{"prompt":"x",%b}', CompletionRequest),
    ("/v1/completions", b'{"prompt":"x","stream":true,"stream_options":{%b}}', StreamOptions),
    ("/v1/chat/completions", b"{" + CHAT + b",%b}", ChatRequest),
    ("/v1/chat/completions", b"{" + MESSAGE + b"}", Message),
    ("/chat_tokenize", b"{" + CHAT + b",%b}", ChatRequest),
    ("/invocations", b"{" + CHAT + b",%b}", ChatRequest),
    ("/v1/responses", b'{"input":"x",%b}', responses_schemas.ResponsesRequest),
    ("/v1/responses", b'{"input":[{"role":"user","content":"x",%b}]}', responses_schemas.InputItem),
    ("/v1/responses", b'{"input":"x","text":{%b}}', responses_schemas.TextOptions),
    ("/v1/responses", b'{"input":"x","reasoning":{%b}}', responses_schemas.ReasoningOptions),
    ("/v1/messages", b"{" + CHAT + b',"max_tokens":9,%b}', messages_schemas.MessagesRequest),
    ("/v1/messages", b"{" + MESSAGE + b',"max_tokens":9}', messages_schemas.MessageParam),
    ("/v1/messages", b"{" + CHAT + b',"max_tokens":9,"thinking":{"type":"enabled",%b}}', messages_schemas.Thinking),
    ("/v1/messages", b"{" + CHAT + b',"max_tokens":9,"output_config":{%b}}', messages_schemas.OutputConfig),
    ("/v1/messages/count_tokens", b"{" + CHAT + b",%b}", messages_schemas.CountTokensRequest),
    ("/detokenize", b'{"tokens":[1],%b}', DetokenizeRequest),
    ("/vertex", b'{"instances":[{"inputs":"x","parameters":{%b}}]}', GenerateParameters),
]

DEEP = 400
NUMBERS = [b"1e999", b"-1e999", b"9" * 5000, b"1e39", b"-7", b"1.5", b"18446744073709551616"]
OTHERS = [
    b"true",
    b'"x"',
    b'""',
    b'"\\u0000\\ud83d\\ude00"',
    b"[]",
    b"{}",
    b'[{"x":[1e999]}]',
    b'{"type":"x","value":{"x":NaN}}',
    b'["x",1,null]',
    b"[" * DEEP + b"]" * DEEP,
    b'{"a":' * DEEP + b"1" + b"}" * DEEP,
]
MALFORMED = [b"NaN", b"-Infinity", b'"\\ud800"', b'"\xff"', b"0x1", b"1.", b"'x'", b"[" * 5000 + b"]" * 5000]


def fields() -> list[Any]:
    """(path, frame, field's name, its type) of every field."""
    found = []
    for path, frame, kind in PLACES:
        hints = typing.get_type_hints(kind)
        for name in kind.__struct_fields__:
            found.append(pytest.param(path, frame, name, hints[name], id=f"{path}-{kind.__name__}.{name}"))
    return found


def is_number(hint: Any) -> bool:
    """Whether the type is a number or none."""
    kinds = set(typing.get_args(hint)) if isinstance(hint, types.UnionType) else {hint}
    return bool(kinds & {int, float}) and kinds <= {int, float, bool, type(None)}


@pytest.fixture(scope="module")
def served(tokenizer: TextTokenizer) -> Iterator[Api]:
    """A server that answers everything."""
    with open_api(make_state(tokenizer)) as api:
        api.engine.say(" fox jumps")
        yield api


def send(api: Api, path: str, content: bytes) -> Any:
    """POST bytes that claim to be JSON; the reply is a success or a readable refusal, in time."""
    reply = api.http.post(path, content=content, headers={"content-type": "application/json"})
    assert reply.status_code in (200, 400, 422), (reply.status_code, content[:200], reply.text[:500])
    if reply.status_code != 200:
        assert reply.headers["content-type"] == "application/json"
        message = error_message(reply)
        assert len(message) < 2000
        assert "Traceback" not in message
    assert api.state.permits.taken == 0
    assert api.engine.in_flight == 0
    return reply


@pytest.mark.parametrize(("path", "frame", "name", "hint"), fields())
def test_a_field(served: Api, path: str, frame: bytes, name: str, hint: Any) -> None:
    for value in (*NUMBERS, *OTHERS):
        reply = send(served, path, frame % (b'"%b":%b' % (name.encode(), value)))
        if is_number(hint) and (value in OTHERS[1:] or value in (b"1e999", b"-1e999", b"9" * 5000)):
            assert reply.status_code in (400, 422), value[:100]
    for value in MALFORMED:
        reply = send(served, path, frame % (b'"%b":%b' % (name.encode(), value)))
        # The decoder may be stopped by the type before it comes to what is malformed.
        assert reply.status_code in (400, 422)


@pytest.mark.parametrize("path", sorted({path for path, _, _ in PLACES}))
def test_a_good_request_is_served_beside_bad_ones(served: Api, path: str) -> None:
    good = next(frame for place, frame, _ in PLACES if place == path) % b'"zzz":1'
    assert send(served, path, good).status_code == 200
