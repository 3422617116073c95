"""From the constraint of a request to the one that is compiled, and the test whether it compiles."""

from __future__ import annotations

import json

from tgi_core.sampling.grammar.engine import GrammarCompiler
from tgi_core.sampling.grammar.schema import normalize_schema, read_schema
from tgi_core.sampling.grammar.spec import Grammar, GrammarKind


def prepare_grammar(grammar: Grammar, compiler: GrammarCompiler) -> Grammar:
    """The normalized constraint, after it has been compiled once.

    Raises:
        GrammarError: it is malformed, unsupported, too complex or matches nothing.
    """
    if grammar.kind is GrammarKind.JSON_SCHEMA:
        schema = normalize_schema(read_schema(grammar.source))
        grammar = Grammar(grammar.kind, json.dumps(schema, ensure_ascii=False, separators=(",", ":")))
    compiler.compile(grammar)
    return grammar
