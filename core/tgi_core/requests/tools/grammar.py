"""Grammars that hold a reply to calls, and let it think before what it is held to.

They are written in Lark with JSON schemas in it, as llguidance reads it
(https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from tgi_core.errors import ValidationError
from tgi_core.requests.tools.choice import Tool
from tgi_core.requests.tools.parser import ARGUMENTS, NAME, CallForm
from tgi_core.sampling.grammar import Grammar, GrammarKind
from tgi_core.sampling.grammar.schema import JsonSchema, normalize_schema, read_schema

MAX_CALLS = 32
"""Calls that one reply may be held to; a model that goes on and on has to stop somewhere."""

_LAYOUT = {"whitespace_flexible": True, "whitespace_pattern": r"\x20?", "coerce_one_of": True}
"""At most one space between the parts of JSON."""

SpecialTokens = Mapping[str, int]
"""Ids of special tokens by their text: a grammar has to name those, their text would not match."""


_SLASH = re.compile(r"(?<!\\)/")


class ReplyGrammar:
    """Writes grammars for the replies to one prompt.

    Args:
        special_tokens: those of the tokenizer.
        think_end: what ends the reasoning inside which the reply begins; None when it does not.
    """

    def __init__(self, special_tokens: SpecialTokens, think_end: str | None) -> None:
        self._special_tokens = special_tokens
        self._think_end = think_end

    def demand_calls(self, tools: Sequence[Tool], form: CallForm, max_calls: int | None) -> Grammar:
        """One or more calls of ``tools``, and nothing else."""
        return self._grammar("calls", self._call_rules(tools, form, max_calls))

    def allow_calls(self, tools: Sequence[Tool], form: CallForm, max_calls: int | None, answer: Grammar) -> Grammar:
        """Either calls of ``tools`` or an answer that matches ``answer``.

        Raises:
            ValidationError: ``answer`` is a grammar of its own, into which calls cannot be put.
        """
        return self._grammar("(calls | answer)", [*self._call_rules(tools, form, max_calls), _answer_rule(answer)])

    def answer(self, answer: Grammar) -> Grammar:
        """An answer that matches ``answer``.

        Raises:
            ValidationError: ``answer`` is a grammar of its own, in front of which no reasoning can be put.
        """
        return answer if self._think_end is None else self._grammar("answer", [_answer_rule(answer)])

    def _grammar(self, reply: str, rules: Sequence[str]) -> Grammar:
        end = self._think_end
        if end is None:
            thought = []
        elif end in self._special_tokens:
            thought = [f"thought: /(.|\\n)*/ {self._literal(end)}"]
        else:
            thought = [f"thought[suffix={_quoted(end)}]: /(.|\\n)*/"]
        start = f"start: {reply}" if end is None else f"start: thought /\\s{{0,2}}/ {reply}"
        return Grammar(GrammarKind.EBNF, "\n".join([start, *thought, *rules]))

    def _call_rules(self, tools: Sequence[Tool], form: CallForm, max_calls: int | None) -> list[str]:
        most = MAX_CALLS if max_calls is None else max_calls
        several = "call"
        if form.is_parallel and most > 1:
            several = f"call ({self._sequence(form.between, 'call')}){{0,{most - 1}}}"
        rules = [
            f"calls: {self._sequence(form.begin, several, form.end)}",
            "call: " + " | ".join(f"call_{index}" for index in range(len(tools))),
        ]
        before, _, behind = form.call.partition(ARGUMENTS)
        for index, tool in enumerate(tools):
            named = before.replace(NAME, tool.name), f"arguments_{index}", behind.replace(NAME, tool.name)
            rules.append(f"call_{index}: {self._sequence(*named)}")
            rules.append(f"arguments_{index}: {_json_rule(tool.parameters)}")
        return rules

    def _sequence(self, before: str, rule: str, behind: str = "") -> str:
        return " ".join(part for part in (self._literal(before), rule, self._literal(behind)) if part)

    def _literal(self, text: str) -> str:
        """Lark for exactly ``text``: special tokens by id, all else as strings."""
        found = sorted((token for token in self._special_tokens if token in text), key=len, reverse=True)
        if not found:
            return _quoted(text) if text else ""
        pieces = re.split(f"({'|'.join(map(re.escape, found))})", text)
        return " ".join(
            f"<[{self._special_tokens[piece]}]>" if index % 2 else _quoted(piece)
            for index, piece in enumerate(pieces)
            if piece
        )


def _answer_rule(answer: Grammar) -> str:
    match answer.kind:
        case GrammarKind.JSON_SCHEMA:
            return f"answer: {_json_rule(normalize_schema(read_schema(answer.source)))}"
        case GrammarKind.REGEX:
            source = _SLASH.sub(r"\/", answer.source).replace("\n", r"\n")
            return f"answer: /{source}/"
        case GrammarKind.CHOICE:
            return "answer: " + " | ".join(map(_quoted, json.loads(answer.source)))
    raise ValidationError("a grammar for the reply cannot be combined with tools or with reasoning")


def _json_rule(schema: JsonSchema) -> str:
    return f"%json {json.dumps({**schema, 'x-guidance': _LAYOUT}, ensure_ascii=False)}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
