"""Chat templates of well-known families, in our own writing of their structure, render as transformers renders them."""

from __future__ import annotations

import functools
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from tests.support.text_tokenizers import BOS, EOS, byte_level_json
from tgi_core.errors import TemplateError
from tgi_core.requests import ChatTemplate
from tgi_core.requests.reasoning.builtin import REASONING_PARSERS
from tgi_core.requests.tools.builtin import TOOL_PARSERS

FOLDER = Path(__file__).parents[2] / "support/chat_templates"
SOURCES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.jinja"))}

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather in a city, <now> & later",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["c", "f"]}},
            "required": ["city"],
        },
    },
}
USER = {"role": "user", "content": "  Wie heiß ist es in Köln? <b>'\"& "}
SYSTEM = {"role": "system", "content": "Be brief."}
ANSWER = {"role": "assistant", "content": "<think>\nhm\n</think>\n\n Warm. \n"}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "abcdefghi",
            "type": "function",
            "function": {"name": "weather", "arguments": {"city": "Köln", "n": 1.5}},
        }
    ],
}
RESULT = {"role": "tool", "name": "weather", "tool_call_id": "abcdefghi", "content": '{"degrees": 20}'}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "question": [USER],
    "system": [SYSTEM, USER],
    "turns": [SYSTEM, USER, ANSWER, {"role": "user", "content": "And now?"}],
    "answered": [USER, ANSWER],
    "call": [USER, CALL],
    "result": [SYSTEM, USER, CALL, RESULT],
    "after the call": [USER, CALL, RESULT, {"role": "assistant", "content": "20 degrees."}, USER],
    "two users": [USER, USER],
    "odd role": [USER, {"role": "critic", "content": "no"}],
}


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(byte_level_json()), bos_token=BOS, eos_token=EOS)


def expected(tokenizer: PreTrainedTokenizerFast, source: str, messages: Any, **options: Any) -> str | None:
    """What transformers renders; None when it refuses."""
    try:
        return str(tokenizer.apply_chat_template(messages, chat_template=source, tokenize=False, **options))
    except (jinja2.TemplateError, TypeError):
        return None


@functools.cache
def compiled(source: str) -> ChatTemplate:
    return ChatTemplate(source, {"bos_token": BOS, "eos_token": EOS})


def rendered(source: str, messages: Any, **options: Any) -> str | None:
    template_kwargs = {key: options.pop(key) for key in [*options] if key in ("enable_thinking", "reasoning_effort")}
    try:
        return compiled(source).render(
            messages, continue_final_message=False, template_kwargs=template_kwargs, **options
        )
    except TemplateError:
        return None


def test_there_are_enough_families() -> None:
    assert len(SOURCES) >= 14


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("family", SOURCES)
def test_as_transformers_renders(family: str, conversation: str, tokenizer: PreTrainedTokenizerFast) -> None:
    source, messages = SOURCES[family], CONVERSATIONS[conversation]
    if "tool_calls" not in source:
        # We tell such templates of calls in words, transformers drops them.
        messages = [message for message in messages if message is not CALL]
    for tools in (None, [WEATHER, WEATHER]):
        for options in (
            {"add_generation_prompt": True},
            {"add_generation_prompt": False},
            {"add_generation_prompt": True, "documents": [{"title": "T", "text": "facts"}, {"text": "more"}]},
            {"add_generation_prompt": True, "enable_thinking": False, "reasoning_effort": "high"},
        ):
            ours = rendered(source, messages, tools=tools, **options)
            assert ours == expected(tokenizer, source, messages, tools=tools, **options)


def test_the_comparison_compares_texts(tokenizer: PreTrainedTokenizerFast) -> None:
    texts = {family: rendered(source, [USER], add_generation_prompt=True) for family, source in SOURCES.items()}
    assert all(texts.values())
    assert f"{datetime.now():%d %b %Y}" in str(texts["llama3"])
    assert rendered(SOURCES["gemma2"], [SYSTEM, USER]) is None


@pytest.mark.parametrize(
    "family", [family for family, source in SOURCES.items() if "tool_calls" in source and family != "deepseek_v3"]
)
def test_arguments_as_text_are_the_same(family: str) -> None:
    """OpenAI's clients send the arguments of earlier calls as JSON text."""
    function = {"name": "weather", "arguments": '{"city": "Köln", "n": 1.5}'}
    call = {**CALL, "content": None, "tool_calls": [{"id": "abcdefghi", "type": "function", "function": function}]}
    with_text = rendered(SOURCES[family], [USER, call, RESULT], tools=[WEATHER])
    assert with_text is not None
    assert with_text == rendered(SOURCES[family], [USER, CALL, RESULT], tools=[WEATHER])


def test_a_template_that_wants_arguments_as_text() -> None:
    function = {"name": "weather", "arguments": '{"city": "Köln"}'}
    call = {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]}
    text = rendered(SOURCES["deepseek_v3"], [USER, call, RESULT])
    assert text is not None
    assert 'weather\n```json\n{"city": "Köln"}\n```' in text


@pytest.mark.parametrize(
    ("family", "tools", "reasoning"),
    [
        ("llama3", "llama3_json", None),
        ("qwen2_5", "hermes", None),
        ("qwen3", "hermes", "think"),
        ("mistral", "mistral", None),
        ("deepseek_v3", "deepseek_v3", "think"),
        ("command_r", "command_r", None),
        ("granite", "granite", "granite"),
        ("gpt_oss", "harmony", "harmony"),
        ("chatml", "json", None),
    ],
)
def test_families_are_told_from_their_templates(family: str, tools: str, reasoning: str | None) -> None:
    source = SOURCES[family]
    found = next((parser.name for parser in TOOL_PARSERS if parser.suits(source, "")), "json")
    assert found == tools
    assert next((parser.name for parser in REASONING_PARSERS if parser.suits(source, "")), None) == reasoning
