"""Parsers that tell a model's reasoning from its answer, by model family."""

from tgi_core.requests.reasoning.parser import ReasoningParser
from tgi_core.requests.reasoning.tagged import TaggedReasoningParser

__all__ = ["ReasoningParser", "TaggedReasoningParser"]
