"""How a model talks: its chat templates, and the parsers that take its replies apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tgi_core.errors import TemplateError
from tgi_core.requests.chat import ChatTemplate
from tgi_core.requests.messages import append_to_last, instruct
from tgi_core.requests.reasoning import ReasoningParser
from tgi_core.requests.replies import ReplyContext, ReplyParser, ReplyPartParser
from tgi_core.requests.tools.builtin import GENERIC
from tgi_core.requests.tools.choice import ToolUse
from tgi_core.requests.tools.grammar import ReplyGrammar, SpecialTokens
from tgi_core.requests.tools.parser import CallForm, ToolParser
from tgi_core.requests.tools.prompt import tool_instruction
from tgi_core.sampling.grammar import Grammar

DEFAULT, TOOL_USE = "default", "tool_use"
"""Names of the template that is taken unless another is named, and of the one for requests with tools."""


class ChatRendering(msgspec.Struct, frozen=True, kw_only=True):
    """The variable parts of a rendering.

    Attributes:
        tools: the request's tools; None when it uses none.
        tool_prompt: the request's own words on how to call tools.
        documents, template_kwargs, continue_final_message, add_generation_prompt: as ``ChatTemplate.render`` has them.
    """

    tools: ToolUse | None = None
    tool_prompt: str | None = None
    documents: Sequence[Mapping[str, Any]] | None = None
    template_kwargs: Mapping[str, Any] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool = True


class ChatTurn(msgspec.Struct, frozen=True):
    """A rendered conversation, and how the reply to it is constrained and read.

    Attributes:
        prompt: the text.
        tools: the request's tools; None when it uses none.
        tool_parser: reads and names the calls; None when there are no tools.
        reasoning_parser: reads the reasoning; None for a model that has none.
    """

    prompt: str
    tools: ToolUse | None
    tool_parser: ToolParser | None
    reasoning_parser: ReasoningParser | None

    @property
    def is_parsed(self) -> bool:
        """Whether the reply has to be taken apart; otherwise all of it is content."""
        return self.tool_parser is not None or self.reasoning_parser is not None

    def reply_parser(self, *, keep_reasoning: bool = True) -> ReplyParser:
        """A parser of one reply."""
        parts: list[ReplyPartParser] = [part for part in (self.reasoning_parser, self.tool_parser) if part is not None]
        names = self.tools.names if self.tools is not None else frozenset[str]()
        max_calls = self.tools.max_calls if self.tools is not None else None
        return ReplyParser(parts, ReplyContext(self.prompt, names), keep_reasoning=keep_reasoning, max_calls=max_calls)

    def make_call_id(self) -> str:
        """A new id for a call."""
        return (self.tool_parser or GENERIC).make_call_id()

    def constrain(self, answer: Grammar | None, special_tokens: SpecialTokens) -> Grammar | None:
        """What the whole reply must match, where the answer in it must match ``answer``; None for nothing.

        A demanded call takes the place of the answer; one that is merely possible stands beside it.

        Raises:
            ValidationError: ``answer`` cannot be combined with the tools or the reasoning.
        """
        think_end = self.reasoning_parser.open_end(self.prompt) if self.reasoning_parser is not None else None
        grammar = ReplyGrammar(special_tokens, think_end)
        if self.tools is not None and self.tool_parser is not None:
            form, max_calls = call_form(self.tool_parser), self.tools.max_calls
            if self.tools.demanded:
                return grammar.demand_calls(self.tools.demanded, form, max_calls)
            if answer is not None:
                return grammar.allow_calls(self.tools.tools, form, max_calls, answer)
        return None if answer is None else grammar.answer(answer)


class ChatFormat:
    """One chat template with its parsers.

    Attributes:
        template: the template.
        tool_parser: for replies with calls.
        reasoning_parser: for replies with reasoning; None for a model that has none.
    """

    def __init__(
        self, template: ChatTemplate, tool_parser: ToolParser, reasoning_parser: ReasoningParser | None
    ) -> None:
        self.template = template
        self.tool_parser = tool_parser
        self.reasoning_parser = reasoning_parser

    def render(self, messages: Sequence[Mapping[str, Any]], rendering: ChatRendering) -> ChatTurn:
        """The prompt that ``messages``, at least one, become.

        Raises:
            TemplateError: the template refuses the messages, fails, or runs past its bounds.
            ValidationError: a part of a message is not text.
        """
        use = rendering.tools
        parser = self.tool_parser if use is not None else None
        if use is not None and use.demanded and self.tool_parser.form is None:
            parser = GENERIC
        if use is not None and parser is not None:
            if not self.template.uses_tools:
                messages = instruct(messages, tool_instruction(use, call_form(parser), rendering.tool_prompt))
            elif rendering.tool_prompt:
                messages = append_to_last(messages, rendering.tool_prompt)
        prompt = self.template.render(
            messages,
            tools=use.definitions if use is not None else None,
            documents=rendering.documents,
            continue_final_message=rendering.continue_final_message,
            add_generation_prompt=rendering.add_generation_prompt,
            template_kwargs=rendering.template_kwargs,
        )
        return ChatTurn(prompt, use, parser, self.reasoning_parser)


class ChatFormats:
    """A model's chat formats by the names of their templates."""

    def __init__(self, formats: Mapping[str, ChatFormat]) -> None:
        """``formats``: at least one."""
        self._formats = dict(formats)

    def __iter__(self) -> Iterator[ChatFormat]:
        return iter(self._formats.values())

    def choose(self, name: str | None, *, has_tools: bool) -> ChatFormat:
        """The format called ``name``; without a name the one for tools if there is one and it is needed, else the
        default.

        Raises:
            TemplateError: there is none of that name.
        """
        names = [name] if name is not None else [TOOL_USE, DEFAULT] if has_tools else [DEFAULT]
        for wanted in names:
            if wanted in self._formats:
                return self._formats[wanted]
        known = ", ".join(f"`{known}`" for known in self._formats)
        if name is None:
            raise TemplateError(f"the model has no default chat template; set `chat_template` to one of {known}")
        shown = name if len(name) <= 60 else f"{name[:57]}..."
        raise TemplateError(
            f"`chat_template` names one of the model's templates: {known}. Given: {shown!r}. "
            "A template of your own is given to the server, with --chat-template"
        )


def call_form(parser: ToolParser) -> CallForm:
    """How calls are written that ``parser`` reads, or that are read by ``json`` in its place."""
    form = parser.form or GENERIC.form
    assert form is not None
    return form


def make_formats(
    sources: Mapping[str, str],
    special_tokens: Mapping[str, str],
    model_type: str,
    *,
    tool_parsers: Sequence[ToolParser],
    reasoning_parsers: Sequence[ReasoningParser],
    tool_parser: ToolParser | None = None,
    reasoning_parser: ReasoningParser | None = None,
) -> ChatFormats:
    """The formats of a model.

    Args:
        sources: its chat templates by name, at least one.
        special_tokens: literal texts that templates may ask for, by name.
        model_type: the model's.
        tool_parsers: those to choose from; the first one that suits a template is taken.
        reasoning_parsers: likewise; none has to suit.
        tool_parser: the one to take for all templates.
        reasoning_parser: likewise.

    Raises:
        TemplateError: a template does not compile.
    """
    formats = {}
    for name, source in sources.items():
        template = ChatTemplate(source, special_tokens)
        fitting = (parser for parser in reasoning_parsers if parser.suits(source, model_type))
        formats[name] = ChatFormat(
            template,
            tool_parser or _find_tool_parser(template, model_type, tool_parsers),
            reasoning_parser or next(fitting, None),
        )
    return ChatFormats(formats)


def _find_tool_parser(template: ChatTemplate, model_type: str, parsers: Sequence[ToolParser]) -> ToolParser:
    if template.uses_tools:
        for parser in parsers:
            if parser.suits(template.source, model_type):
                return parser
    return GENERIC
