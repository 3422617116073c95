"""The parsers in docs/tools.md, as a plugin of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.plugins import write_distribution
from tests.support.replies import NAMES, REASONING, TOOLS, parse
from tgi_core.plugins import Plugins
from tgi_core.requests.chat_format import ChatRendering, make_formats
from tgi_core.requests.replies import ReplyContext, collect_reply
from tgi_core.requests.tools import read_tools

PAGE = (Path(__file__).parents[4] / "docs/tools.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
TEMPLATE = "{{ tools | tojson }}{{ messages[0].content }} "


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plugins:
    monkeypatch.syspath_prepend(tmp_path)
    (source,) = [example for example in EXAMPLES if "tgi_tool_parsers" in example]
    write_distribution(tmp_path, "arrow", "arrow_plugin", source)
    return Plugins.discover()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("arrow", 'So:\n=> weather {"city": "Rome"}\n=> now {} ok'),
        ("do", 'So:\n<do>{"name": "weather", "arguments": {"city": "Rome"}}</do> <do>{"name": "now"}</do> ok'),
    ],
)
def test_calls(plugins: Plugins, name: str, text: str) -> None:
    parser = plugins.choose_tool_parser(name)
    whole = parse([parser], text)
    parsed = collect_reply(whole)
    assert parsed.content == "So:ok"
    assert [(call.name, call.arguments) for call in parsed.calls] == [("weather", '{"city": "Rome"}'), ("now", "{}")]
    for cut in range(len(text)):
        assert parse([parser], text, [cut]) == whole
    assert collect_reply(parse([parser], "a => b {c} <do>d</do>")).content == "a => b {c} <do>d</do>"


def test_reasoning(plugins: Plugins) -> None:
    parser = plugins.choose_reasoning_parser("musing")
    parsed = collect_reply(parse([parser], "<muse>hm</muse>Yes", context=ReplyContext("", NAMES)))
    assert (parsed.reasoning, parsed.content) == ("hm", "Yes")


@pytest.mark.parametrize(("mark", "name"), [("=> ", "arrow"), ("<do>", "do"), ("<tool_call><do>", "hermes")])
def test_it_is_chosen_for_models_that_no_other_knows(plugins: Plugins, mark: str, name: str) -> None:
    formats = make_formats(
        {"default": TEMPLATE + mark},
        {},
        "new",
        tool_parsers=plugins.tool_parsers(),
        reasoning_parsers=plugins.reasoning_parsers(),
    )
    (chosen,) = formats
    assert chosen.tool_parser.name == name
    use = read_tools([{"function": {"name": "now"}}], "required", None)
    turn = chosen.render([{"role": "user", "content": "hi"}], ChatRendering(tools=use))
    grammar = turn.constrain(None, {})
    assert grammar is not None
    assert "now" in grammar.source


def test_the_page_names_every_parser() -> None:
    for name in (*TOOLS, *REASONING):
        assert f"| `{name}` |" in PAGE
