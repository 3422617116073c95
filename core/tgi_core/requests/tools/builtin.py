"""The families that ship, those that are easily told from a chat template first."""

from __future__ import annotations

from tgi_core.requests.tools.deepseek import DeepSeekToolParser
from tgi_core.requests.tools.harmony import HarmonyToolParser
from tgi_core.requests.tools.json_calls import read_json_calls
from tgi_core.requests.tools.marked import MarkedToolParser
from tgi_core.requests.tools.mistral import MistralToolParser
from tgi_core.requests.tools.parser import ARGUMENTS, NAME, CallForm, ToolParser
from tgi_core.requests.tools.python_calls import read_python_calls

_JSON_CALL = f'{{"name": "{NAME}", "arguments": {ARGUMENTS}}}'
_LLAMA_CALL = f'{{"name": "{NAME}", "parameters": {ARGUMENTS}}}'

HERMES = MarkedToolParser(
    "hermes",
    read_json_calls,
    markers={"<tool_call>": "</tool_call>"},
    form=CallForm(call=f"<tool_call>\n{_JSON_CALL}\n</tool_call>", between="\n"),
    hints=("<tool_call>",),
)
GRANITE = MarkedToolParser(
    "granite",
    read_json_calls,
    markers={"<|tool_call|>": "", "<tool_call>": "</tool_call>"},
    form=CallForm(begin="<|tool_call|>[", call=_JSON_CALL, between=", ", end="]"),
    hints=("<|tool_call|>[", "<|tool_call|>'"),
    model_types=("granite", "granitemoe", "granitemoehybrid"),
)
PHI = MarkedToolParser(
    "phi4_mini",
    read_json_calls,
    markers={"<|tool_call|>": "<|/tool_call|>", "functools": ""},
    form=CallForm(begin="<|tool_call|>[", call=_JSON_CALL, between=", ", end="]<|/tool_call|>"),
    hints=("<|/tool_call|>", "<|/tool|>"),
)
COMMAND = MarkedToolParser(
    "command_r",
    read_json_calls,
    markers={"<|START_ACTION|>": "<|END_ACTION|>", "Action: ```json": "```"},
    form=CallForm(
        begin="<|START_ACTION|>[",
        call=f'{{"tool_call_id": "0", "tool_name": "{NAME}", "parameters": {ARGUMENTS}}}',
        end="]<|END_ACTION|>",
        is_parallel=False,
    ),
    hints=("<|START_ACTION|>",),
)
LLAMA_JSON = MarkedToolParser(
    "llama3_json",
    read_json_calls,
    markers={"<|python_tag|>": ""},
    unmarked="{[",
    form=CallForm(call=_LLAMA_CALL, between="; "),
    hints=("<|python_tag|>", '{"name": function name, "parameters":'),
)
PYTHONIC = MarkedToolParser(
    "pythonic",
    read_python_calls,
    markers={
        "<|python_start|>": "<|python_end|>",
        "<|tool_call_start|>": "<|tool_call_end|>",
        "<function_calls>": "</function_calls>",
    },
    unmarked="[",
    hints=("<|python_start|>", "<|tool_call_start|>", "[func_name1(", "<function_calls>"),
    model_types=("llama4", "llama4_text"),
)
GEMMA = MarkedToolParser(
    "gemma",
    read_python_calls,
    markers={"```tool_code": "```", "```tool_call": "```"},
    hints=("```tool_code",),
)
GENERIC = MarkedToolParser(
    "json",
    read_json_calls,
    markers={"<tool_call>": "</tool_call>", "```json": "```"},
    unmarked="{[",
    form=CallForm(call=_JSON_CALL, between="\n", is_parallel=False),
)
"""For models without a format of their own; they are told to use this one."""

TOOL_PARSERS: tuple[ToolParser, ...] = (
    HarmonyToolParser(),
    DeepSeekToolParser(is_fenced=True),
    DeepSeekToolParser(is_fenced=False),
    MistralToolParser(has_names=True),
    MistralToolParser(has_names=False),
    PHI,
    COMMAND,
    GRANITE,
    HERMES,
    PYTHONIC,
    LLAMA_JSON,
    GEMMA,
    GENERIC,
)
