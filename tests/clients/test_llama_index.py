"""LlamaIndex' OpenAILike."""

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


def make(server: ServerProcess, **settings: Any) -> Any:
    from llama_index.llms.openai_like import OpenAILike

    return OpenAILike(
        model="demo",
        api_base=f"{server.url}/v1",
        api_key="unused",
        temperature=0,
        max_tokens=24,
        timeout=60,
        **settings,
    )


def test_completions(server: ServerProcess) -> None:
    llm = make(server)
    plain = llm.complete(PROMPT).text
    assert ANSWER in plain
    assert [piece.text for piece in llm.stream_complete(PROMPT)][-1] == plain


def test_chat(server: ServerProcess) -> None:
    from llama_index.core.llms import ChatMessage

    llm = make(server, is_chat_model=True)
    messages = [ChatMessage(role="user", content="Who wrote Hamlet?")]
    plain = llm.chat(messages).message.content
    assert AUTHOR in plain
    assert [piece.message.content for piece in llm.stream_chat(messages)][-1] == plain


def test_structured_output_by_a_tool(server: ServerProcess) -> None:
    llm = make(server, is_chat_model=True, is_function_calling_model=True)
    assert isinstance(llm.as_structured_llm(Answer).complete("Who wrote Hamlet?").raw, Answer)
