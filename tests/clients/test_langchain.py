"""LangChain's integrations for TGI and for OpenAI's API."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel

from tests.clients.questions import ANSWER, AUTHOR, PROMPT
from tests.support.server import ServerProcess

pytestmark = pytest.mark.clients


class Answer(BaseModel):
    """Who wrote it."""

    author: Literal["Marlowe", "Shakespeare"]


@pytest.fixture
def endpoint(server: ServerProcess) -> Any:
    from langchain_huggingface import HuggingFaceEndpoint

    return HuggingFaceEndpoint(endpoint_url=server.url, max_new_tokens=16, temperature=0.01, timeout=60)


@pytest.fixture
def chat(server: ServerProcess) -> Any:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(
        base_url=f"{server.url}/v1", api_key="unused", model="demo", temperature=0, max_tokens=48, timeout=60
    )


def test_huggingface_endpoint(endpoint: Any) -> None:
    assert ANSWER in endpoint.invoke(PROMPT)
    assert ANSWER in "".join(endpoint.stream(PROMPT))


def test_huggingface_chat(endpoint: Any) -> None:
    from langchain_huggingface import ChatHuggingFace

    chat = ChatHuggingFace(llm=endpoint, model_id="demo")
    assert AUTHOR in chat.invoke("Who wrote Hamlet?").content
    assert AUTHOR in "".join(chunk.content for chunk in chat.stream("Who wrote Hamlet?"))


def test_openai_chat(chat: Any) -> None:
    reply = chat.invoke("Who wrote Hamlet?")
    assert AUTHOR in reply.content
    assert reply.usage_metadata["output_tokens"] > 0
    assert "".join(chunk.content for chunk in chat.stream("Who wrote Hamlet?")) == reply.content


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_openai_structured_output(chat: Any, method: str) -> None:
    structured = chat.with_structured_output(Answer, method=method)
    assert isinstance(structured.invoke("Who wrote Hamlet?"), Answer)


def test_openai_tools(chat: Any) -> None:
    reply = chat.bind_tools([Answer], tool_choice="Answer").invoke("Who wrote Hamlet?")
    assert [call["name"] for call in reply.tool_calls] == ["Answer"]
    assert Answer(**reply.tool_calls[0]["args"])


def test_openai_completions(server: ServerProcess) -> None:
    from langchain_openai import OpenAI

    llm = OpenAI(base_url=f"{server.url}/v1", api_key="unused", model="demo", temperature=0, max_tokens=8, timeout=60)
    assert ANSWER in llm.invoke(PROMPT)
