"""The hooks a plugin may implement. They run at start-up only, never during a step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from tgi_core.contract import Backend
    from tgi_core.models.family import Architecture, ModuleArchitecture
    from tgi_core.requests.reasoning import ReasoningParser
    from tgi_core.requests.tools import ToolParser
    from tgi_core.sampling.grammar import GrammarEngine
    from tgi_core.sampling.rules import LogitsRule

PROJECT_NAME = "tgi_serve"

hookspec = pluggy.HookspecMarker(PROJECT_NAME)
hookimpl = pluggy.HookimplMarker(PROJECT_NAME)


@hookspec
def tgi_backends() -> Iterable[Backend]:  # type: ignore[empty-body]
    """Backends this plugin offers."""


@hookspec
def tgi_architectures() -> Iterable[Architecture | ModuleArchitecture]:  # type: ignore[empty-body]
    """Model architectures this plugin offers, each by its ``model_type``."""


@hookspec
def tgi_logits_rules() -> Iterable[LogitsRule]:  # type: ignore[empty-body]
    """Sampling rules this plugin offers, in the order they run; they run after those that ship."""


@hookspec
def tgi_grammar_engines() -> Iterable[GrammarEngine]:  # type: ignore[empty-body]
    """Engines of structured output this plugin offers, each by its ``name``."""


@hookspec
def tgi_tool_parsers() -> Iterable[ToolParser]:  # type: ignore[empty-body]
    """Parsers of calls this plugin offers, each by its ``name``; those that ship are asked first whether they suit."""


@hookspec
def tgi_reasoning_parsers() -> Iterable[ReasoningParser]:  # type: ignore[empty-body]
    """Parsers of reasoning this plugin offers, each by its ``name``; those that ship are asked first."""
