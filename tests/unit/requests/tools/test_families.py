"""What each family's replies become."""

from __future__ import annotations

import json

import pytest

from tests.support.replies import CALLS, NAMES, REASONING, REPLIES, TOOLS, Reply, parse
from tgi_core.requests.replies import ReplyContext, ReplyParser, collect_reply


@pytest.mark.parametrize("reply", REPLIES, ids=[f"{number}-{reply.family}" for number, reply in enumerate(REPLIES)])
def test_well_formed_replies(reply: Reply) -> None:
    parsed = collect_reply(parse([TOOLS[reply.family]], reply.text))
    assert (parsed.content, parsed.reasoning) == (reply.content, reply.reasoning)
    assert tuple((call.name, call.arguments) for call in parsed.calls) == reply.calls
    for call in parsed.calls:
        json.loads(call.arguments)


def test_every_family_has_an_example() -> None:
    assert {reply.family for reply in REPLIES} == set(TOOLS)


@pytest.mark.parametrize("family", TOOLS)
@pytest.mark.parametrize("text", ["", " ", "Hi", "\n Hi!\n\n", "a < b, {x} [1] `c` <tool", '{"answer": 42}', "[1, 2]"])
def test_text_without_calls_is_content_to_the_letter(family: str, text: str) -> None:
    assert collect_reply(parse([TOOLS[family]], text)).content == text


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("hermes", "<tool_call>oops</tool_call> tail"),
        ("hermes", '<tool_call>{"name": 3, "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
        ("hermes", '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>'),
        ("hermes", "<tool_call>{}</tool_call>"),
        ("hermes", "<tool_call>[]</tool_call>"),
        ("llama3_json", '{"name": "unknown", "parameters": {}}'),
        ("llama3_json", '{"name": "weather", "age": 3}'),
        ("pythonic", "[unknown(a=1)]"),
        ("pythonic", "[weather(1)]"),
        ("pythonic", "[weather(a=b)]"),
        ("pythonic", "[weather(a={1, 2})]"),
        ("pythonic", "[weather(a=float('nan'))]"),
        ("gemma", "```tool_code\nfor x in y: pass\n```"),
        ("json", '```json\n{"name": "unknown", "arguments": {}}\n```'),
        ("json", '```json\n{"x": 1}\n```'),
        ("mistral", "[TOOL_CALLS] and so on"),
        ("mistral_args", "[TOOL_CALLS]two words[ARGS]{}"),
        ("deepseek_v3", "<｜tool▁calls▁begin｜> nothing"),
        ("deepseek_v3", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\nno json"),
    ],
)
def test_malformed_calls_are_content(family: str, text: str) -> None:
    text = f"Before. {text} after" if family not in ("llama3_json", "pythonic") else text
    parsed = collect_reply(parse([TOOLS[family]], text))
    assert parsed.content == text
    assert parsed.calls == []


def test_a_call_behind_a_malformed_one_is_read() -> None:
    text = 'A <tool_call>oops</tool_call> B <tool_call>{"name": "now"}</tool_call> C'
    parsed = collect_reply(parse([TOOLS["hermes"]], text))
    assert [call.name for call in parsed.calls] == ["now"]
    assert parsed.content == "A <tool_call>oops</tool_call> BC"


def test_arguments_that_turn_out_malformed_end_their_call() -> None:
    parsed = collect_reply(parse([TOOLS["hermes"]], '<tool_call>{"name": "f", "arguments": {"a": 1 2}}</tool_call>'))
    assert [(call.name, call.arguments) for call in parsed.calls] == [("f", '{"a": 1 ')]
    assert parsed.content == "2}}</tool_call>"


def test_line_ends_in_argument_strings_are_escaped() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"code": "a\n\tb\x01"}}</tool_call>'
    (call,) = collect_reply(parse([TOOLS["hermes"]], text)).calls
    assert json.loads(call.arguments) == {"code": "a\n\tb\x01"}


def test_nesting_is_bounded() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"a": ' + "[" * 100_000
    (call,) = collect_reply(parse([TOOLS["hermes"]], text)).calls
    assert call.arguments.startswith('{"a": [[')


def test_python_values() -> None:
    text = """[weather(a="x, y)", b='it\\'s', c='''q'"q''', d=-1.5, e={"k": (1, 2)}, f=true, g='\\d', h="")]"""
    (call,) = collect_reply(parse([TOOLS["pythonic"]], text)).calls
    assert json.loads(call.arguments) == {
        "a": "x, y)",
        "b": "it's",
        "c": "q'\"q",
        "d": -1.5,
        "e": {"k": [1, 2]},
        "f": True,
        "g": "\\d",
        "h": "",
    }


def test_calls_beyond_the_allowed_ones_are_left_out() -> None:
    events = parse([TOOLS["hermes"]], REPLIES[0].text, max_calls=1)
    assert [call.name for call in collect_reply(events).calls] == ["weather"]


class TestSpecialTokens:
    def test_those_of_the_family_are_seen_and_others_are_not(self) -> None:
        parser = ReplyParser([TOOLS["mistral"]], ReplyContext("", NAMES))
        events = [*parser.push("<s>", True), *parser.push("Hi", False), *parser.push("[TOOL_CALLS]", True)]
        events += parser.push('[{"name": "now", "arguments": {}}]', False)
        events += [*parser.push("</s>", True), *parser.finish()]
        parsed = collect_reply(events)
        assert parsed.content == "Hi"
        assert [call.name for call in parsed.calls] == ["now"]

    def test_those_of_the_reasoning_are_seen_by_it_alone(self) -> None:
        parser = ReplyParser([REASONING["think"], TOOLS["hermes"]], ReplyContext("", NAMES))
        pieces = [("<think>", True), ("hm", False), ("</think>", True), ("Hi", False), ("<|im_end|>", True)]
        events = [event for text, special in pieces for event in parser.push(text, special)]
        parsed = collect_reply(events + parser.finish())
        assert (parsed.reasoning, parsed.content) == ("hm", "Hi")


class TestHarmony:
    def parse(self, text: str, prompt: str = "<|start|>assistant") -> tuple[str, str, int]:
        parsed = collect_reply(parse([TOOLS["harmony"]], text, context=ReplyContext(prompt, NAMES)))
        return parsed.content, parsed.reasoning, len(parsed.calls)

    def test_text_without_a_header(self) -> None:
        assert self.parse("Just text") == ("Just text", "", 0)

    def test_a_message_that_the_prompt_has_begun(self) -> None:
        prompt = "<|start|>assistant<|channel|>final<|message|>Once"
        assert self.parse(" upon a time<|return|>", prompt) == (" upon a time", "", 0)

    def test_a_header_that_is_cut_off_says_nothing(self) -> None:
        assert self.parse("<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|chan") == ("", "hm", 0)

    def test_what_is_too_long_for_a_header_is_content(self) -> None:
        text = "<|channel|>" + "word " * 100 + "end"
        assert self.parse(text) == (text, "", 0)

    def test_without_tools_there_are_no_calls(self) -> None:
        text = "<|channel|>commentary to=functions.f<|message|>{}<|call|>"
        parsed = collect_reply(parse([REASONING["harmony"]], text, context=ReplyContext("", frozenset())))
        assert (parsed.content, parsed.calls) == ("{}", [])


@pytest.mark.parametrize(
    ("template", "model_type", "family"),
    [
        ("{{ tools }}<tool_call>", "qwen3", "hermes"),
        ("{{ tools }}<|python_tag|>", "llama", "llama3_json"),
        ("{{ tools }}<|python_start|>", "llama4", "pythonic"),
        ("{{ tools }}[TOOL_CALLS]", "mistral", "mistral"),
        ("{{ tools }}[TOOL_CALLS][ARGS]", "mistral3", "mistral_args"),
        ("{{ tools }}```tool_code", "gemma3_text", "gemma"),
        ("{{ tools }}<｜tool▁call▁begin｜>function<｜tool▁sep｜>```json", "deepseek_v3", "deepseek_v3"),
        ("{{ tools }}<｜tool▁call▁begin｜><｜tool▁sep｜>", "deepseek_v3", "deepseek_v31"),
        ("{{ tools }}<|channel|><|message|>", "gpt_oss", "harmony"),
        ("{{ tools }}<|START_ACTION|>", "cohere2", "command_r"),
        ("{{ tools }}<|/tool|>", "phi3", "phi4_mini"),
        ("{{ tools }}", "granite", "granite"),
    ],
)
def test_families_are_told_from_templates(template: str, model_type: str, family: str) -> None:
    assert next(parser.name for parser in TOOLS.values() if parser.suits(template, model_type)) == family


def test_call_ids() -> None:
    ids = {TOOLS["hermes"].make_call_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(call_id.startswith("call_") for call_id in ids)
    short = TOOLS["mistral"].make_call_id()
    assert (len(short), short.isalnum()) == (9, True)


def test_expected_arguments_are_json() -> None:
    assert json.loads(CALLS[0][1]) == {"city": "Köln", "days": [1, 2500.0, None, True]}
