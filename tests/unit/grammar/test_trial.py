"""What a trial finds out by the first tokens of a reply."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tgi_core.sampling.grammar import Grammar, GrammarCompiler, GrammarError, GrammarKind, Vocabulary
from tgi_core.sampling.grammar.prepare import prepare_grammar


def schema(value: Any) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value))


def regex(source: str) -> Grammar:
    return Grammar(GrammarKind.REGEX, source)


def ebnf(source: str) -> Grammar:
    return Grammar(GrammarKind.EBNF, source)


NODE = {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"]}
LIST = {"type": "array", "items": {"$ref": "#/$defs/n"}, "minItems": 1}
ENDLESS = "a text without an end, or one that is too long"


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (schema({"$defs": {"n": NODE}, "$ref": "#/$defs/n"}), ENDLESS),
        (schema({"$defs": {"n": LIST}, "$ref": "#/$defs/n"}), ENDLESS),
        (schema({"type": "array", "items": {"const": 1}, "minItems": 100_000}), ENDLESS),
        (ebnf('start: a\na: "x" a'), ENDLESS),
        (ebnf('start: x{100000}\nx: "a"'), ENDLESS),
        (regex("a{10000000}"), "too many expressions"),
        (regex("(a?){5000}a{5000}1"), "too many expressions"),
        (schema({"type": "string", "pattern": "^(.{0,5000}[ab]){40}1$"}), "too many expressions"),
    ],
    ids=lambda value: value.source if isinstance(value, Grammar) else None,
)
def test_what_the_first_tokens_of_a_reply_show_is_refused(
    demo_compiler: GrammarCompiler, demo: Vocabulary, grammar: Grammar, reason: str
) -> None:
    with pytest.raises(GrammarError) as caught:
        prepare_grammar(grammar, demo_compiler, demo)
    assert reason in caught.value.reason


@pytest.mark.parametrize(
    "grammar",
    [
        regex("a"),
        regex("a?"),
        regex("(.|\n)*"),
        schema({"const": "x" * 3_000}),
        schema({"type": "array", "items": {"$ref": "#"}, "maxItems": 2}),
        ebnf('start: "a" start | "b"'),
    ],
    ids=lambda grammar: grammar.source[:40],
)
def test_what_can_be_served_passes(demo_compiler: GrammarCompiler, demo: Vocabulary, grammar: Grammar) -> None:
    prepare_grammar(grammar, demo_compiler, demo)
