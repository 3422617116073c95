"""Telling a model of the functions it may call where its chat template does not."""

from __future__ import annotations

import json

from tgi_core.requests.tools.choice import ToolUse
from tgi_core.requests.tools.parser import ARGUMENTS, NAME, CallForm


def tool_instruction(use: ToolUse, form: CallForm, tool_prompt: str | None) -> str:
    """What the functions are and how to call them.

    ``tool_prompt``: the request's own words for how to call them.
    """
    functions = [json.dumps(tool.definition["function"], ensure_ascii=False) for tool in use.tools]
    lines = ["You can call these functions:", *functions]
    if tool_prompt:
        return "\n".join([*lines, tool_prompt])
    example = form.call.replace(NAME, "<name>").replace(ARGUMENTS, "{<arguments>}")
    lines += ["To call one, reply with this and nothing else, its name and its arguments filled in:"]
    lines += [f"{form.begin}{example}{form.end}"]
    if not use.demanded:
        lines.append("When no function helps, reply in words.")
    elif use.is_named:
        lines.append(f"Call {use.demanded[0].name} now.")
    else:
        lines.append("Call one now.")
    return "\n".join(lines)
