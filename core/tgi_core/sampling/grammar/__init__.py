"""Structured output: constraints on the text of a reply, and the engines that turn them into token masks."""

from tgi_core.sampling.grammar.constraints import Constraints, MaskJob
from tgi_core.sampling.grammar.engine import GrammarCompiler, GrammarEngine, GrammarError, Matcher, Vocabulary
from tgi_core.sampling.grammar.spec import Grammar, GrammarKind

__all__ = [
    "Constraints",
    "Grammar",
    "GrammarCompiler",
    "GrammarEngine",
    "GrammarError",
    "GrammarKind",
    "MaskJob",
    "Matcher",
    "Vocabulary",
]
