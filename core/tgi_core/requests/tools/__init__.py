"""Calls of functions: what a request allows, how a model is told and held to write them, how replies are read."""

from tgi_core.requests.tools.choice import Tool, ToolUse, read_tools
from tgi_core.requests.tools.json_calls import read_json_call, read_json_calls
from tgi_core.requests.tools.marked import MarkedToolParser
from tgi_core.requests.tools.parser import ARGUMENTS, NAME, CallForm, ToolParser
from tgi_core.requests.tools.python_calls import read_python_calls

__all__ = [
    "ARGUMENTS",
    "NAME",
    "CallForm",
    "MarkedToolParser",
    "Tool",
    "ToolParser",
    "ToolUse",
    "read_json_call",
    "read_json_calls",
    "read_python_calls",
    "read_tools",
]
