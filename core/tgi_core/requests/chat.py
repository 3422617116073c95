"""Chat messages to a prompt, through the model's own Jinja template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tgi_core.errors import TemplateError
from tgi_core.requests.messages import arguments_as_text, has_text_arguments, prepare_messages

MAX_OUTPUT_CHARACTERS = 16_000_000
MAX_LOOP_STEPS = 500_000


class ChatTemplate:
    """A model's chat template, compiled once.

    It runs as ``transformers`` runs it, which is what templates are written for: Jinja's immutable sandbox with
    ``trim_blocks``, ``lstrip_blocks``, ``break`` and ``continue``, ``raise_exception``, ``strftime_now``, an unescaped
    ``tojson`` and the ``{% generation %}`` tag. Loops and the size of the output are bounded.

    Messages, tools and documents are plain JSON values here and nowhere else behind the routes: a template is a program
    from outside that looks into them with its own keys.

    Attributes:
        source: its text.
        uses_tools: whether it tells the model of tools.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Compile ``source``; ``special_tokens`` holds the literal texts a template may ask for, such as ``bos_token``.

        Raises:
            TemplateError: the source is not a template.
        """
        self.source = source
        self._special_tokens = dict(special_tokens)
        try:
            self._template, variables = _compile(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise TemplateError(f"the model's chat template does not compile: {error}") from error
        self.uses_tools = "tools" in variables

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        continue_final_message: bool | None = None,
        add_generation_prompt: bool = True,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt.

        ``continue_final_message``: end the prompt inside the last message, so that the model goes on with it; None
        does so when that message is the assistant's and has text, as TGI does.
        ``template_kwargs``: further variables, such as ``enable_thinking``.

        Raises:
            TemplateError: the template refuses the messages, fails, or runs past its bounds.
        """
        prepared = prepare_messages(messages, self.source)
        continued = _text_to_continue(prepared, continue_final_message)
        variables = {
            **self._special_tokens,
            **(template_kwargs or {}),
            "messages": prepared,
            "tools": list(tools) if tools else None,
            "documents": list(documents) if documents else None,
            "add_generation_prompt": add_generation_prompt and continued is None,
        }
        try:
            rendered = self._run(variables)
        except TemplateError:
            if not has_text_arguments(messages):
                raise
            # Most templates want the arguments of a call as an object, a few as its JSON text.
            rendered = self._run({**variables, "messages": arguments_as_text(prepared)})
        return rendered if continued is None else _cut_behind(rendered, continued)

    def _run(self, variables: dict[str, Any]) -> str:
        pieces: list[str] = []
        length = 0
        try:
            for piece in self._template.generate({**variables, _STEP: _LoopBound().step}):
                pieces.append(piece)
                length += len(piece)
                if length > MAX_OUTPUT_CHARACTERS:
                    raise TemplateError(f"the prompt is longer than {MAX_OUTPUT_CHARACTERS} characters")
        except TemplateError:
            raise
        except Exception as error:  # a template may do anything that Python can refuse
            raise TemplateError(str(error) or type(error).__name__) from error
        return "".join(pieces)


_STEP = "_loop_step"


class _LoopBound:
    """Counts the steps of all loops of one rendering."""

    def __init__(self) -> None:
        self._steps = 0

    def step(self) -> None:
        self._steps += 1
        if self._steps > MAX_LOOP_STEPS:
            raise TemplateError(f"the template's loops run for more than {MAX_LOOP_STEPS} steps")


def _compile(source: str) -> tuple[jinja2.Template, set[str]]:
    """The template, and the variables that it takes from outside."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationTag]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    tree = environment.parse(source)
    variables = meta.find_undeclared_variables(tree)
    for loop in tree.find_all(nodes.For):
        loop.body.insert(0, nodes.ExprStmt(_call_step(), lineno=loop.lineno))
        if loop.test is not None:
            # Items that the condition leaves out never reach the body. The step returns None.
            loop.test = nodes.Or(_call_step(), loop.test)
    tree.set_environment(environment)
    code = environment.compile(tree)
    return jinja2.Template.from_code(environment, code, environment.make_globals(None)), variables


def _call_step() -> nodes.Call:
    return nodes.Call(nodes.Name(_STEP, "load"), [], [], None, None)


class _GenerationTag(Extension):
    """``{% generation %} … {% endgeneration %}`` marks the assistant's text for training; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=lineno)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)


def _text_to_continue(messages: Sequence[Mapping[str, Any]], wanted: bool | None) -> str | None:
    if wanted is False or not messages:
        return None
    last = messages[-1]
    content = last.get("content")
    text = content.strip() if isinstance(content, str) else ""
    if wanted is None and (last.get("role") != "assistant" or not text or last.get("tool_calls")):
        return None
    if not text:
        raise TemplateError("the last message has no text to continue")
    return text


def _cut_behind(rendered: str, text: str) -> str:
    start = rendered.rfind(text)
    if start < 0:
        raise TemplateError("the template changes the last message, so it cannot be continued")
    return rendered[: start + len(text)]
