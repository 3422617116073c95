"""From a conversation to a prompt, a constraint and a parser."""

from __future__ import annotations

from typing import Any

import pytest

from tgi_core.errors import TemplateError, ValidationError
from tgi_core.requests.chat_format import ChatFormats, ChatRendering, ChatTurn, make_formats
from tgi_core.requests.reasoning.builtin import REASONING_PARSERS
from tgi_core.requests.replies import parse_reply
from tgi_core.requests.tools import read_tools
from tgi_core.requests.tools.builtin import TOOL_PARSERS
from tgi_core.sampling.grammar import Grammar, GrammarKind

PLAIN = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
NATIVE = "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}" + PLAIN
THINKING = NATIVE + "<think>\n{# </think> #}"
TOOLS = [{"type": "function", "function": {"name": "now", "description": "The time"}}]
HELLO = [{"role": "user", "content": "hello"}]
SYSTEM = {"role": "system", "content": "Be brief."}
ANSWER = Grammar(GrammarKind.JSON_SCHEMA, '{"type":"object"}')


def formats(source: str = PLAIN, model_type: str = "llama", **named: str) -> ChatFormats:
    return make_formats(
        {"default": source, **named},
        {},
        model_type,
        tool_parsers=TOOL_PARSERS,
        reasoning_parsers=REASONING_PARSERS,
    )


def render(source: str, messages: Any = HELLO, *, choice: Any = None, tools: Any = TOOLS, **options: Any) -> ChatTurn:
    use = read_tools(tools, choice, None)
    chosen = formats(source).choose(None, has_tools=use is not None)
    return chosen.render(messages, ChatRendering(tools=use, **options))


class TestPrompt:
    def test_a_template_that_knows_tools_gets_them(self) -> None:
        assert render(NATIVE).prompt == "[now]<user>hello\n<assistant>"

    def test_other_models_are_told_before_the_first_question(self) -> None:
        prompt = render(PLAIN, [{"role": "assistant", "content": "Hi."}, *HELLO]).prompt
        assert prompt == (
            "<assistant>Hi.\n<user>You can call these functions:\n"
            '{"name": "now", "description": "The time", "parameters": {"type": "object", "properties": {}}}\n'
            "To call one, reply with this and nothing else, its name and its arguments filled in:\n"
            '{"name": "<name>", "arguments": {<arguments>}}\n'
            "When no function helps, reply in words.\n\nhello\n<assistant>"
        )

    @pytest.mark.parametrize("role", ["system", "developer"])
    def test_or_in_the_system_message(self, role: str) -> None:
        prompt = render(PLAIN, [{**SYSTEM, "role": role}, *HELLO]).prompt
        assert prompt.startswith("<system>Be brief.\n\nYou can call")
        assert prompt.endswith("<user>hello\n<assistant>")

    def test_parts_of_text_are_kept(self) -> None:
        parts = [{"role": "user", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]}]
        assert render(PLAIN, parts).prompt.endswith("words.\n\nhello\n<assistant>")

    @pytest.mark.parametrize(("choice", "end"), [("required", "Call one now."), ("now", "Call now now.")])
    def test_a_demanded_call_is_told(self, choice: str, end: str) -> None:
        assert f"\n{end}\n\nhello" in render(PLAIN, choice=choice).prompt

    def test_the_requests_own_words(self) -> None:
        assert '"properties": {}}}\nUse XML.\n\nhello' in render(PLAIN, tool_prompt="Use XML.").prompt
        assert render(NATIVE, tool_prompt="Use XML.").prompt == "[now]<user>hello\n\nUse XML.\n<assistant>"
        assert "reply with this" in render(PLAIN, tool_prompt="").prompt

    def test_no_tools_no_word(self) -> None:
        assert render(PLAIN, tools=None).prompt == render(PLAIN, choice="none").prompt == "<user>hello\n<assistant>"

    def test_the_messages_are_not_changed(self) -> None:
        messages = [dict(SYSTEM), dict(HELLO[0])]
        render(PLAIN, messages)
        assert messages == [SYSTEM, HELLO[0]]


class TestNames:
    def test_tools_have_a_template_of_their_own(self) -> None:
        both = formats(PLAIN, tool_use="with tools")
        assert both.choose(None, has_tools=True).template.source == "with tools"
        assert both.choose(None, has_tools=False).template.source == PLAIN
        assert formats(PLAIN).choose(None, has_tools=True).template.source == PLAIN

    def test_a_request_may_name_one(self) -> None:
        assert formats(PLAIN, rag="r").choose("rag", has_tools=True).template.source == "r"

    @pytest.mark.parametrize("name", ["rag", "{{ 1 }}" * 50])
    def test_unknown_names(self, name: str) -> None:
        with pytest.raises(TemplateError, match=r"`default`, `tool_use`.*--chat-template"):
            formats(PLAIN, tool_use="t").choose(name, has_tools=False)

    def test_without_a_default(self) -> None:
        only = make_formats({"rag": "r"}, {}, "llama", tool_parsers=TOOL_PARSERS, reasoning_parsers=())
        with pytest.raises(TemplateError, match="`rag`"):
            only.choose(None, has_tools=False)


class TestParsers:
    def test_nothing_is_parsed_without_need(self) -> None:
        assert not render(PLAIN, tools=None).is_parsed
        assert render(PLAIN).is_parsed
        assert render(THINKING, tools=None).is_parsed

    def test_reasoning_and_calls(self) -> None:
        turn = render(THINKING + "<tool_call>")
        text = 'Hm.</think>\n\nSo: <tool_call>{"name": "now"}</tool_call>'
        assert turn.tool_parser is not None
        assert turn.tool_parser.name == "hermes"
        # The prompt does not end inside the reasoning here, so nothing is.
        assert parse_reply(turn.reply_parser(), [(text, False)]).reasoning == ""
        reply = parse_reply(render(THINKING).reply_parser(), [("Hm.</think>\n\nSo.", False)])
        assert (reply.reasoning, reply.content) == ("Hm.", "So.")

    def test_a_model_without_native_tools_is_read_as_it_is_told(self) -> None:
        (chosen,) = formats(PLAIN + "{# <tool_call> #}")
        assert chosen.tool_parser.name == "json"

    def test_an_explicit_parser(self) -> None:
        mistral = next(parser for parser in TOOL_PARSERS if parser.name == "mistral")
        (chosen,) = make_formats(
            {"default": PLAIN}, {}, "llama", tool_parsers=(), reasoning_parsers=(), tool_parser=mistral
        )
        turn = chosen.render(HELLO, ChatRendering(tools=read_tools(TOOLS, None, None)))
        assert '[TOOL_CALLS][{"name": "<name>", "arguments": {<arguments>}}]' in turn.prompt
        assert len(turn.make_call_id()) == 9


class TestConstraint:
    def test_free_replies_are_free(self) -> None:
        assert render(NATIVE).constrain(None, {}) is None
        assert render(NATIVE, tools=None).constrain(ANSWER, {}) is ANSWER

    def test_demanded_calls(self) -> None:
        grammar = render(NATIVE + "{# <tool_call> #}", choice="required").constrain(ANSWER, {})
        assert grammar is not None
        assert grammar.kind is GrammarKind.EBNF
        assert "<tool_call>" in grammar.source
        assert "answer" not in grammar.source

    def test_possible_calls_stand_beside_the_answer(self) -> None:
        grammar = render(NATIVE).constrain(ANSWER, {})
        assert grammar is not None
        assert "calls | answer" in grammar.source

    def test_reasoning_comes_first(self) -> None:
        grammar = render(THINKING, tools=None).constrain(ANSWER, {})
        assert grammar is not None
        assert grammar.source.startswith("start: thought")

    def test_a_family_without_a_form_is_held_to_json(self) -> None:
        turn = render(NATIVE + "{# ```tool_code #}", choice="required")
        assert turn.tool_parser is not None
        assert turn.tool_parser.name == "json"
        free = render(NATIVE + "{# ```tool_code #}")
        assert free.tool_parser is not None
        assert free.tool_parser.name == "gemma"

    def test_what_cannot_be_combined(self) -> None:
        with pytest.raises(ValidationError, match="cannot be combined"):
            render(NATIVE).constrain(Grammar(GrammarKind.EBNF, "start: /a/"), {})
