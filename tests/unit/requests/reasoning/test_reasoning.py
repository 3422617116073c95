from __future__ import annotations

import pytest

from tests.support.replies import NAMES, REASONING, TOOLS, parse
from tgi_core.requests.replies import ReplyContext, ReplyParser, collect_reply


def split(family: str, text: str, prompt: str = "") -> tuple[str, str]:
    """Reasoning and content."""
    parsed = collect_reply(parse([REASONING[family]], text, context=ReplyContext(prompt, NAMES)))
    return parsed.reasoning, parsed.content


@pytest.mark.parametrize(
    ("family", "opening", "closing"),
    [
        ("think", "<think>", "</think>"),
        ("deepseek_r1", "<think>", "</think>"),
        ("mistral", "[THINK]", "[/THINK]"),
        ("granite", "Here is my thought process:", "Here is my response:"),
        ("command", "<|START_THINKING|>", "<|END_THINKING|>"),
    ],
)
class TestTags:
    def test_the_reply_opens_them(self, family: str, opening: str, closing: str) -> None:
        text = f"\n{opening}\nWell,\n\nso.\n{closing}\n\nYes.\n"
        assert split(family, text, "<assistant>") == ("Well,\n\nso.", "Yes.\n")

    def test_the_prompt_opens_them(self, family: str, opening: str, closing: str) -> None:
        assert split(family, f"Well.\n{closing}\nYes.", f"<assistant>{opening}\n") == ("Well.", "Yes.")

    def test_they_are_never_closed(self, family: str, opening: str, closing: str) -> None:
        assert split(family, f"{opening}Well, {closing[:-1]}") == (f"Well, {closing[:-1]}", "")

    def test_the_prompt_has_closed_them(self, family: str, opening: str, closing: str) -> None:
        assert split(family, "Yes.", f"<assistant>{opening}\n\n{closing}\n\n") == ("", "Yes.")

    def test_the_end_is_known_where_the_prompt_opens_them(self, family: str, opening: str, closing: str) -> None:
        parser = REASONING[family]
        assert parser.open_end(f"<assistant>{opening}\n") == closing
        assert parser.open_end(f"<assistant>{opening}\n\n{closing}\n\n") is None
        assert (parser.open_end("<assistant>") is None) == (family != "deepseek_r1")


def test_a_reply_without_reasoning() -> None:
    assert split("think", " So <think>it</think> is.") == ("", " So <think>it</think> is.")


def test_reasoning_without_an_opening_tag() -> None:
    assert split("deepseek_r1", "Well.</think>Yes.") == ("Well.", "Yes.")
    assert split("think", "Well.</think>Yes.") == ("", "Well.</think>Yes.")


def test_calls_follow_the_reasoning() -> None:
    text = '<think>Which city?</think>\n<tool_call>\n{"name": "now"}\n</tool_call>'
    parsed = collect_reply(parse([REASONING["think"], TOOLS["hermes"]], text))
    assert (parsed.reasoning, parsed.content) == ("Which city?", "")
    assert [call.name for call in parsed.calls] == ["now"]


def test_reasoning_can_be_left_out() -> None:
    parser = ReplyParser([REASONING["think"]], ReplyContext(), keep_reasoning=False)
    events = parser.push("<think>hm</think>Yes") + parser.finish()
    assert collect_reply(events).reasoning == ""
    assert collect_reply(events).content == "Yes"


@pytest.mark.parametrize(
    ("template", "model_type", "family"),
    [
        ("{% if '</think>' in content %}", "qwen3", "think"),
        ("[THINK]...[/THINK]", "mistral3", "mistral"),
        ("Here is my thought process", "granite", "granite"),
        ("<|START_THINKING|>", "cohere2", "command"),
        ("<|channel|>analysis<|message|>", "gpt_oss", "harmony"),
        ("{{ messages }}", "llama", None),
    ],
)
def test_families_are_told_from_templates(template: str, model_type: str, family: str | None) -> None:
    found = next((parser.name for parser in REASONING.values() if parser.suits(template, model_type)), None)
    assert found == family
