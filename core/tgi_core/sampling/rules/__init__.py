"""Logits rules: what changes or cuts the scores of a step, one small class each.

Imports no torch, so that a plugin can derive from ``LogitsRule`` without it; the rules that ship are in ``builtin``.
"""

from tgi_core.sampling.rules.rule import LogitsRule, Parameter, RowContext, Stage
from tgi_core.sampling.rules.ruleset import RuleSet

__all__ = ["LogitsRule", "Parameter", "RowContext", "RuleSet", "Stage"]
