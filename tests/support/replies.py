"""Replies of all families as their models write them, and parsing them in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tgi_core.requests.reasoning.builtin import REASONING_PARSERS
from tgi_core.requests.replies import Event, ReplyContext, ReplyParser, ReplyPartParser, merge
from tgi_core.requests.tools.builtin import TOOL_PARSERS

TOOLS = {parser.name: parser for parser in TOOL_PARSERS}
REASONING = {parser.name: parser for parser in REASONING_PARSERS}
NAMES = frozenset(("weather", "погода", "now"))


class Reply(NamedTuple):
    """A reply and what it is: content, reasoning, calls as (name, arguments)."""

    family: str
    text: str
    content: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    reasoning: str = ""


CALLS = (("weather", '{"city": "Köln", "days": [1, 2.5e3, null, true]}'), ("now", "{}"))
_JSON = '{"name": "weather", "arguments": {"city": "Köln", "days": [1, 2.5e3, null, true]}}'
_PARAMETERS = _JSON.replace("arguments", "parameters")
_PYTHON = "weather(city='Köln', days=[1, 2.5e3, None, True])"
_NORMAL = (("weather", '{"city": "Köln", "days": [1, 2500.0, null, true]}'), ("now", "{}"))

REPLIES = (
    Reply(
        "hermes",
        f'Ich schaue nach.\n<tool_call>\n{_JSON}\n</tool_call>\n<tool_call>\n{{"name": "now"}}\n</tool_call>',
        "Ich schaue nach.",
        CALLS,
    ),
    Reply("hermes", f'<tool_call>[{_JSON}, {{"name": "now", "arguments": null}}]</tool_call> ok', "ok", CALLS),
    Reply("llama3_json", f'{_PARAMETERS}; {{"name": "now", "parameters": {{}}}}', "", CALLS),
    Reply("llama3_json", f'<|python_tag|>{_PARAMETERS}\n{{"type": "function", "name": "now"}}', "", CALLS),
    Reply("pythonic", f"[{_PYTHON}, now()]", "", _NORMAL),
    Reply("pythonic", f"Hm. <|python_start|>[{_PYTHON}, now()]<|python_end|>", "Hm.", _NORMAL),
    Reply("gemma", f"Klar:\n```tool_code\n{_PYTHON}\nprint(now())\n```\nbald", "Klar:bald", _NORMAL),
    Reply("mistral", f'[TOOL_CALLS][{_JSON}, {{"name": "now", "arguments": {{}}}}]', "", CALLS),
    Reply(
        "mistral_args",
        f"Gut.[TOOL_CALLS]weather[ARGS]{CALLS[0][1]}[TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{{}}",
        "Gut.",
        CALLS,
    ),
    Reply("mistral_args", f"[TOOL_CALLS]weather{CALLS[0][1]}[TOOL_CALLS]now{{}}", "", CALLS),
    Reply(
        "deepseek_v3",
        "Gut.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
        f"{CALLS[0][1]}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{{}}\n```"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "Gut.",
        CALLS,
    ),
    Reply(
        "deepseek_v31",
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{CALLS[0][1]}<｜tool▁call▁end｜>"
        "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "",
        CALLS,
    ),
    Reply(
        "harmony",
        "<|channel|>analysis<|message|>Er fragt\nnach Wetter.<|end|><|start|>assistant<|channel|>commentary<|message|>"
        "Moment.<|end|><|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
        f"{CALLS[0][1]}<|call|>",
        "Moment.",
        CALLS[:1],
        "Er fragt\nnach Wetter.",
    ),
    Reply(
        "harmony",
        "<|channel|>analysis<|message|>2 + 2<|end|><|start|>assistant<|channel|>final<|message|>Vier.<|return|>",
        "Vier.",
        (),
        "2 + 2",
    ),
    Reply("harmony", " to=functions.now<|channel|>commentary json<|message|>{}<|call|>", "", CALLS[1:]),
    Reply(
        "command_r",
        f'<|START_ACTION|>[\n    {{"tool_call_id": "0", "tool_name": "weather", "parameters": {CALLS[0][1]}}},\n'
        '    {"tool_call_id": "1", "tool_name": "now", "parameters": {}}\n]<|END_ACTION|>',
        "",
        CALLS,
    ),
    Reply("granite", f'<|tool_call|>[{_JSON}, {{"name": "now", "arguments": {{}}}}]', "", CALLS),
    Reply("phi4_mini", f'<|tool_call|>[{_JSON}, {{"name": "now", "arguments": {{}}}}]<|/tool_call|>', "", CALLS),
    Reply("json", f'{_JSON}\n{{"function": "now", "arguments": "{{}}"}}', "", CALLS),
    Reply("json", f'Gern.\n```json\n{_JSON}\n```\n<tool_call>{{"name": "now"}}</tool_call>', "Gern.", CALLS),
    Reply(
        "json",
        f'[{{"type": "function", "function": {_PARAMETERS}}}, {{"arguments": {{}}, "name": "now"}}]',
        "",
        CALLS,
    ),
)
"""At least one well-formed reply of each family."""


def parse(
    parts: Sequence[ReplyPartParser],
    text: str,
    cuts: Sequence[int] = (),
    *,
    context: ReplyContext | None = None,
    max_calls: int | None = None,
) -> list[Event]:
    """The events of ``text`` fed in the pieces between ``cuts``, neighbours joined."""
    parser = ReplyParser(parts, context or ReplyContext("", NAMES), max_calls=max_calls)
    events = []
    start = 0
    for cut in (*sorted(cuts), len(text)):
        events += parser.push(text[start:cut])
        start = cut
    return merge(events + parser.finish())
