"""``tools`` and ``tool_choice`` as clients send them."""

from __future__ import annotations

from typing import Any

import pytest

from tgi_core.errors import ToolError
from tgi_core.requests.tools import read_tools

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "d", "parameters": SCHEMA}}
NOW = {"type": "function", "function": {"name": "now"}}


@pytest.mark.parametrize("choice", [None, "auto"])
def test_the_model_is_free(choice: str | None) -> None:
    use = read_tools([WEATHER, NOW], choice, None)
    assert use is not None
    assert (use.names, use.demanded, use.max_calls) == ({"weather", "now"}, (), None)
    assert use.definitions[0] == WEATHER


def test_none_means_no_tools() -> None:
    assert read_tools([WEATHER], "none", None) is None
    assert read_tools([], None, None) is None
    assert read_tools(None, "auto", None) is None


def test_a_call_is_required() -> None:
    use = read_tools([WEATHER, NOW], "required", None)
    assert use is not None
    assert [tool.name for tool in use.demanded] == ["weather", "now"]
    assert not use.is_named


@pytest.mark.parametrize(
    "choice",
    [
        "now",
        {"type": "function", "function": {"name": "now"}},
        {"function": {"name": "now"}},
        {"type": "function", "name": "now"},
    ],
)
def test_a_named_function(choice: Any) -> None:
    use = read_tools([WEATHER, NOW], choice, True)
    assert use is not None
    assert [tool.name for tool in use.demanded] == ["now"]
    assert (use.max_calls, use.is_named) == (1, True)


def test_parallel_calls_can_be_forbidden() -> None:
    use = read_tools([WEATHER], "required", False)
    assert use is not None
    assert use.max_calls == 1


class TestShapes:
    def test_a_function_without_parameters(self) -> None:
        use = read_tools([NOW], None, None)
        assert use is not None
        assert use.definitions[0]["function"]["parameters"] == {"type": "object", "properties": {}}
        assert use.tools[0].parameters == {"type": "object", "properties": {}, "additionalProperties": False}

    def test_tgi_calls_parameters_arguments(self) -> None:
        use = read_tools([{"function": {"name": "weather", "arguments": SCHEMA}}], None, None)
        assert use is not None
        assert use.definitions == [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]

    def test_flat_tools(self) -> None:
        use = read_tools([{"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}], None, None)
        assert use is not None
        function = {"name": "weather", "strict": True, "parameters": SCHEMA}
        assert use.definitions == [{"type": "function", "function": function}]

    def test_a_schema_without_a_type_is_an_object(self) -> None:
        use = read_tools([{"function": {"name": "f", "parameters": {}}}], None, None)
        assert use is not None
        assert use.tools[0].parameters == {"type": "object"}


@pytest.mark.parametrize(
    ("tools", "choice", "cause"),
    [
        (None, "required", "no `tools`"),
        ([WEATHER], "nothing", r"`nothing`.*`weather`"),
        ([WEATHER], {"type": "function"}, "`tool_choice`"),
        ([WEATHER], {"type": "function", "function": 3}, "`tool_choice`"),
        ([WEATHER, WEATHER], None, "more than once"),
        ([{"type": "web_search"}], None, r"tools\[0\].type"),
        ([{"type": "function"}], None, r"tools\[0\].function.name"),
        ([{"type": "function", "function": "f"}], None, r"tools\[0\].function"),
        ([WEATHER, {"function": {"name": 'a"b'}}], None, r"tools\[1\].function.name"),
        ([{"function": {"name": "f" * 129}}], None, "128"),
        ([{"function": {"name": "f", "parameters": []}}], None, "JSON schema"),
        ([{"function": {"name": "f", "parameters": {"type": "objekt"}}}], None, "#"),
        ([{"function": {"name": f"f{number}"}} for number in range(513)], None, "512"),
    ],
)
def test_what_is_refused(tools: Any, choice: Any, cause: str) -> None:
    with pytest.raises(ToolError, match=cause) as caught:
        read_tools(tools, choice, None)
    assert (caught.value.status, caught.value.error_type) == (422, "tool_error")
