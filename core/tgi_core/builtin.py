"""The core's own plugin: what ships with tgi-serve registers through the same hooks as everybody else's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tgi_core.hookspecs import hookimpl

if TYPE_CHECKING:
    from tgi_core.models.family import Architecture, ModuleArchitecture
    from tgi_core.requests.reasoning import ReasoningParser
    from tgi_core.requests.tools import ToolParser
    from tgi_core.sampling.grammar import GrammarEngine
    from tgi_core.sampling.rules import LogitsRule


@hookimpl
def tgi_architectures() -> Iterable[Architecture | ModuleArchitecture]:
    """The families described in ``tgi_core.models``."""
    from tgi_core.models import ARCHITECTURES, MODULES

    return (*ARCHITECTURES, *MODULES)


@hookimpl(tryfirst=True)
def tgi_logits_rules() -> Iterable[LogitsRule]:
    """The rules of ``tgi_core.sampling.rules``; first, so that plugins' rules run after them."""
    from tgi_core.sampling.rules.builtin import RULES

    return RULES


@hookimpl
def tgi_grammar_engines() -> Iterable[GrammarEngine]:
    """llguidance, the engine that a server uses unless told otherwise."""
    from tgi_core.sampling.grammar.llguidance_engine import LLGuidanceEngine

    return [LLGuidanceEngine()]


@hookimpl(tryfirst=True)
def tgi_tool_parsers() -> Iterable[ToolParser]:
    """The families of ``tgi_core.requests.tools``; first, so that a plugin changes nothing for the models they know."""
    from tgi_core.requests.tools.builtin import TOOL_PARSERS

    return TOOL_PARSERS


@hookimpl(tryfirst=True)
def tgi_reasoning_parsers() -> Iterable[ReasoningParser]:
    """The families of ``tgi_core.requests.reasoning``; first, as with tools."""
    from tgi_core.requests.reasoning.builtin import REASONING_PARSERS

    return REASONING_PARSERS
