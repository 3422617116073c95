from __future__ import annotations

import time
from typing import Any

import pytest

from tgi_core.errors import TemplateError, ValidationError
from tgi_core.requests import ChatTemplate

CHATML = """\
{% for message in messages %}
{{ '<|' + message['role'] + '|>' + message['content'] + '</s>' }}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|assistant|>' -}}
{% endif %}
"""
HI = {"role": "user", "content": "Hi"}


def render(source: str, messages: list[dict[str, Any]] | None = None, **options: Any) -> str:
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    return template.render([HI] if messages is None else messages, **options)


def test_messages_and_generation_prompt() -> None:
    assert render(CHATML) == "<|user|>Hi</s>\n<|assistant|>"
    assert render(CHATML, add_generation_prompt=False) == "<|user|>Hi</s>\n"


def test_block_lines_leave_no_whitespace() -> None:
    assert render("a\n  {% if true %}\nb\n  {% endif %}\nc") == "a\nb\nc"


def test_loop_controls() -> None:
    skip, leave = "{% if i == 1 %}{% continue %}{% endif %}", "{% if i == 3 %}{% break %}{% endif %}"
    source = "{% for i in range(9) %}" + skip + leave + "{{ i }}{% endfor %}"
    assert render(source) == "02"


def test_filtered_loops_keep_their_condition() -> None:
    assert render("{% for i in range(6) if i % 2 %}{{ loop.index }}{{ i }} {% endfor %}") == "11 23 35 "


def test_special_tokens_and_further_variables() -> None:
    source = "{{ bos_token }}{{ eos_token }}{{ enable_thinking }}{{ tools[0].name }}{{ documents[0].text }}"
    rendered = render(
        source, tools=[{"name": "f"}], documents=[{"text": "d"}], template_kwargs={"enable_thinking": False}
    )
    assert rendered == "<s></s>Falsefd"


def test_further_variables_do_not_replace_the_messages() -> None:
    assert render("{{ messages | length }}", template_kwargs={"messages": []}) == "1"


def test_whether_a_template_tells_of_tools() -> None:
    assert ChatTemplate("{% for tool in tools %}{{ tool.name }}{% endfor %}", {}).uses_tools
    assert not ChatTemplate("{% set tools = 1 %}{{ tools }}{# tools #}", {}).uses_tools


def test_no_tools_are_none() -> None:
    assert render("{{ tools is none }}", tools=[]) == "True"


def test_tojson_escapes_nothing_that_json_does_not() -> None:
    assert render("{{ {'b': 'ü<', 'a': 1} | tojson }}") == '{"b": "ü<", "a": 1}'
    assert render("{{ {'a': 1} | tojson(indent=2) }}") == '{\n  "a": 1\n}'


def test_strftime_now() -> None:
    assert render("{{ strftime_now('%Y') }}") >= "2024"


def test_the_generation_tag_is_only_its_body() -> None:
    assert render("a{% generation %}b{{ messages[0].content }}{% endgeneration %}c") == "abHic"


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ nothing.here }}", "nothing"),
        ("{{ 'a' + 1 }}", "str"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    ],
)
def test_failures_are_template_errors(source: str, cause: str) -> None:
    with pytest.raises(TemplateError, match=cause) as caught:
        render(source)
    assert (caught.value.status, caught.value.error_type) == (422, "template_error")


def test_a_source_that_is_no_template() -> None:
    with pytest.raises(TemplateError, match="does not compile"):
        ChatTemplate("{% for %}", {})


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}0123456789{% endfor %}{% endfor %}",
    ],
)
def test_loops_are_bounded(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tgi_core.requests.chat.MAX_LOOP_STEPS", 20_000)
    before = time.perf_counter()
    with pytest.raises(TemplateError, match="20000 steps"):
        render(source)
    assert time.perf_counter() - before < 2.0


def test_the_output_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tgi_core.requests.chat.MAX_OUTPUT_CHARACTERS", 1000)
    with pytest.raises(TemplateError, match="1000 characters"):
        render("{% for i in range(9999) %}0123456789{% endfor %}")


class TestContinueFinalMessage:
    def test_an_assistant_text_at_the_end_is_continued(self) -> None:
        assert render(CHATML, [HI, {"role": "assistant", "content": "Once "}]) == "<|user|>Hi</s>\n<|assistant|>Once"

    def test_no_new_turn_is_begun(self) -> None:
        source = "{{ add_generation_prompt }}:{{ messages[-1].content }}"
        assert render(source, [HI, {"role": "assistant", "content": "Once"}]) == "False:Once"

    def test_the_last_occurrence_counts(self) -> None:
        messages = [{"role": "user", "content": "Yes"}, {"role": "assistant", "content": "Yes"}]
        assert render(CHATML, messages).endswith("<|assistant|>Yes")

    def test_an_answer_with_calls_is_not_continued(self) -> None:
        call = {"function": {"name": "f", "arguments": "{}"}}
        messages = [HI, {"role": "assistant", "content": "Once", "tool_calls": [call]}]
        assert render("{{ add_generation_prompt }}", messages) == "True"

    def test_it_can_be_switched_off(self) -> None:
        messages = [HI, {"role": "assistant", "content": "Once"}]
        assert render(CHATML, messages, continue_final_message=False).endswith("Once</s>\n<|assistant|>")

    def test_it_can_be_asked_for_with_any_role(self) -> None:
        assert render(CHATML, continue_final_message=True) == "<|user|>Hi"

    def test_an_empty_assistant_text_is_not_continued(self) -> None:
        assert render(CHATML, [HI, {"role": "assistant", "content": ""}]).endswith("</s>\n<|assistant|>")
        with pytest.raises(TemplateError, match="no text"):
            render(CHATML, [HI, {"role": "assistant", "content": ""}], continue_final_message=True)

    def test_a_template_that_rewrites_the_message(self) -> None:
        with pytest.raises(TemplateError, match="cannot be continued"):
            render("{{ messages[-1].content | upper }}", [HI, {"role": "assistant", "content": "once"}])


class TestMessages:
    def test_parts_are_joined(self) -> None:
        parts = [{"type": "text", "text": "See "}, {"type": "text", "text": "this!"}]
        assert "|>See this!</s>" in render(CHATML, [{"role": "user", "content": parts}])

    @pytest.mark.parametrize(
        "part", [{"type": "input_audio"}, {"type": "image_url", "image_url": {"url": "http://x/y.png"}}, "text"]
    )
    def test_other_parts_are_refused(self, part: Any) -> None:
        with pytest.raises(ValidationError, match=r"messages\[1\].content\[0\]"):
            render(CHATML, [HI, {"role": "user", "content": [part]}])

    def test_calls_come_as_structures(self) -> None:
        source = "{{ messages[0].tool_calls[0].function.arguments.city }}[{{ messages[0].content }}]"
        call = {"id": "0", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        assert render(source, [message]) == "Köln[]"
        assert call["function"]["arguments"] == '{"city": "Köln"}'  # type: ignore[index]

    def test_tgi_calls_arguments_parameters(self) -> None:
        call = {"function": {"name": "weather", "parameters": {"city": "Rome"}}}
        source = "{{ messages[0].tool_calls[0].function.arguments.city }}"
        assert render(source, [{"role": "assistant", "tool_calls": [call]}]) == "Rome"

    def test_calls_become_text_where_a_template_has_no_word_of_them(self) -> None:
        call = {"id": "0", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}}
        rendered = render(CHATML, [{"role": "assistant", "content": "I look.", "tool_calls": [call]}])
        assert 'I look.\n\n{"name": "weather", "arguments": {"city": "Köln"}}</s>' in rendered

    def test_the_developer_is_the_system_where_a_template_does_not_know_them(self) -> None:
        messages = [{"role": "developer", "content": "Be brief."}]
        assert render("{{ messages[0].role }}", messages) == "system"
        assert render("{{ messages[0].role }}{# developer #}", messages) == "developer"

    def test_everything_else_stays(self) -> None:
        message = {"role": "tool", "content": "20", "name": "weather", "tool_call_id": "1", "thinking": "hm"}
        assert render("{{ messages[0].items() | list | length }}{{ messages[0].thinking }}", [message]) == "5hm"

    def test_arguments_that_are_no_json_stay_text(self) -> None:
        call = {"function": {"name": "weather", "arguments": "{oops"}}
        source = "{{ messages[0].tool_calls[0].function.arguments }}"
        assert render(source, [{"role": "assistant", "tool_calls": [call]}]) == "{oops"
