"""The families that ship, those that are easily told from a chat template first."""

from __future__ import annotations

from tgi_core.requests.reasoning.harmony import HarmonyReasoningParser
from tgi_core.requests.reasoning.parser import ReasoningParser
from tgi_core.requests.reasoning.tagged import TaggedReasoningParser

REASONING_PARSERS: tuple[ReasoningParser, ...] = (
    HarmonyReasoningParser(),
    TaggedReasoningParser("mistral", "[THINK]", "[/THINK]", hints=("[/THINK]",)),
    TaggedReasoningParser(
        "command", "<|START_THINKING|>", "<|END_THINKING|>", hints=("<|START_THINKING|>", "<|END_THINKING|>")
    ),
    TaggedReasoningParser(
        "granite", "Here is my thought process:", "Here is my response:", hints=("Here is my thought process",)
    ),
    TaggedReasoningParser("think", "<think>", "</think>", hints=("</think>",)),
    TaggedReasoningParser("deepseek_r1", "<think>", "</think>", is_assumed=True),
)
"""``deepseek_r1`` is for models that think without an opening tag; it has to be chosen."""
