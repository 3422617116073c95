"""Which functions a request offers and which of them must be called: ``tools``, ``tool_choice`` and relatives."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tgi_core.errors import ToolError
from tgi_core.sampling.grammar import GrammarError
from tgi_core.sampling.grammar.schema import JsonSchema, normalize_schema, read_schema

MAX_TOOLS = 512
_NAME = re.compile(r"[^\s\"'\\<>{}\x00-\x1f\x7f]{1,128}")
_NO_PARAMETERS: JsonSchema = {"type": "object", "properties": {}}


class Tool(msgspec.Struct, frozen=True):
    """A function that may be called.

    Attributes:
        name: what it is called by.
        parameters: the JSON schema of its arguments, normalized for a grammar.
        definition: as templates expect it: ``{"type": "function", "function": {"name", "parameters", …}}``.
    """

    name: str
    parameters: JsonSchema
    definition: dict[str, Any]


class ToolUse(msgspec.Struct, frozen=True):
    """The tools of a request.

    Attributes:
        tools: all of them.
        demanded: those of which at least one must be called; empty where the model is free.
        max_calls: how many calls a reply may have; None for any number.
        is_named: the request names the function to call.
    """

    tools: tuple[Tool, ...]
    demanded: tuple[Tool, ...] = ()
    max_calls: int | None = None
    is_named: bool = False

    @property
    def names(self) -> frozenset[str]:
        """The functions' names."""
        return frozenset(tool.name for tool in self.tools)

    @property
    def definitions(self) -> list[dict[str, Any]]:
        """All tools as templates expect them."""
        return [tool.definition for tool in self.tools]


def read_tools(
    tools: Sequence[Mapping[str, Any]] | None,
    tool_choice: str | Mapping[str, Any] | None,
    parallel_tool_calls: bool | None,
) -> ToolUse | None:
    """What a request says about tools, in OpenAI's shapes and TGI's; None when it uses none.

    ``tool_choice``: "auto", "none", "required", a function's name, or an object that names a function.

    Raises:
        ToolError: a tool is not well-formed, or one is chosen that is not there.
    """
    if tool_choice == "none":
        return None
    if not tools:
        if tool_choice in (None, "auto"):
            return None
        raise ToolError("`tool_choice` demands a call but there are no `tools`")
    if len(tools) > MAX_TOOLS:
        raise ToolError(f"`tools` must have at most {MAX_TOOLS} entries. Given: {len(tools)}")
    found = tuple(_read_tool(f"tools[{index}]", tool) for index, tool in enumerate(tools))
    names = [tool.name for tool in found]
    for name in names:
        if names.count(name) > 1:
            raise ToolError(f"`tools` has the function `{name}` more than once")
    max_calls = 1 if parallel_tool_calls is False else None
    if tool_choice in (None, "auto"):
        return ToolUse(found, (), max_calls)
    if tool_choice == "required":
        return ToolUse(found, found, max_calls)
    name = _chosen_name(tool_choice)
    chosen = tuple(tool for tool in found if tool.name == name)
    if not chosen:
        raise ToolError(
            f"`tool_choice` names `{name}`, but `tools` has only {', '.join(f'`{known}`' for known in names)}"
        )
    return ToolUse(found, chosen, 1, is_named=True)


def _chosen_name(choice: str | Mapping[str, Any] | None) -> str:
    if isinstance(choice, str):
        return choice
    holder = choice.get("function", choice) if isinstance(choice, Mapping) else {}
    name = holder.get("name") if isinstance(holder, Mapping) else None
    if not isinstance(name, str):
        raise ToolError('`tool_choice` must be "auto", "none", "required", a name or {"function": {"name": …}}')
    return name


def _read_tool(place: str, tool: Mapping[str, Any]) -> Tool:
    if tool.get("type", "function") != "function":
        raise ToolError(f"`{place}.type` must be `function`. Given: `{tool['type']}`")
    function = tool.get("function", {key: value for key, value in tool.items() if key != "type"})
    if not isinstance(function, Mapping):
        raise ToolError(f"`{place}.function` must be an object")
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ToolError(f"`{place}.function.name` must be 1 to 128 characters without spaces, quotes and brackets")
    given = function.get("parameters")
    if given is None:
        given = function.get("arguments")  # TGI's name of it
    parameters = _NO_PARAMETERS if given is None else given
    if not isinstance(parameters, Mapping):
        raise ToolError(f"`{place}.function.parameters` must be a JSON schema: an object")
    rest = {key: value for key, value in function.items() if key not in ("parameters", "arguments")}
    definition = {**tool, "type": "function", "function": {**rest, "parameters": parameters}}
    if "function" not in tool:
        definition = {"type": "function", "function": definition["function"]}
    schema = _normalized(f"{place}.function.parameters", parameters)
    if not _allows_object(schema):
        raise ToolError(f"`{place}.function.parameters` must be an object schema: a call's arguments are an object")
    if "type" in schema:
        schema["type"] = "object"
    return Tool(name, schema, definition)


def _allows_object(schema: Any) -> bool:
    """Whether the types that the schema names leave room for objects; references are not looked into."""
    if not isinstance(schema, Mapping):
        return schema is not False
    kind = schema.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        return False
    choices = (schema[key] for key in ("anyOf", "oneOf") if key in schema)
    return all(any(map(_allows_object, choice)) for choice in choices) and all(
        map(_allows_object, schema.get("allOf", ()))
    )


def _normalized(place: str, parameters: Mapping[str, Any]) -> JsonSchema:
    try:
        schema = normalize_schema(read_schema(msgspec.json.encode(parameters).decode()))
    except GrammarError as error:
        raise ToolError(f"`{place}` is not a schema: {error.detail}") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolError(f"`{place}` cannot be read: {error}") from error
    if not {"type", "$ref", "allOf", "anyOf", "oneOf"} & schema.keys():
        schema["type"] = "object"
    return schema
