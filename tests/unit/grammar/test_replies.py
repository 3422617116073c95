"""Whole replies of a model that knows nothing, at temperature 1.5: what is complete parses and fits its schema."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.support.constrained import sample_reply, schema_errors
from tests.support.json_schemas import SCHEMAS
from tests.support.real_tokenizers import REAL_TOKENIZERS
from tgi_core.requests import IncrementalDetokenizer, TextTokenizer
from tgi_core.sampling.grammar import Grammar, GrammarCompiler, GrammarEngine, GrammarKind, Vocabulary
from tgi_core.sampling.grammar.prepare import prepare_grammar

MAX_TOKENS = 300
COMPLETE_SHARE = 0.9


class Tally(msgspec.Struct):
    """How many replies there were and how many of them came to an end."""

    replies: int = 0
    complete: int = 0


def check_replies(compiler: GrammarCompiler, vocabulary: Vocabulary, name: str, *, replies: int, tally: Tally) -> None:
    """Sample replies under the schema called ``name`` and check the complete ones."""
    schema: Any = SCHEMAS[name]
    grammar = prepare_grammar(Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema)), compiler, vocabulary)
    matcher = compiler.compile(grammar)
    tokenizer = TextTokenizer(vocabulary.tokenizer_file, workers=1)
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    for _ in range(replies):
        reply = sample_reply(compiler, matcher.copy(), vocabulary, rng, max_tokens=MAX_TOKENS)
        tally.replies += 1
        if not reply.is_complete:
            continue
        tally.complete += 1
        detokenizer = IncrementalDetokenizer(tokenizer)
        text = "".join(detokenizer.push(token_id) for token_id in reply.token_ids)
        assert schema_errors(schema, json.loads(text)) == [], text


def test_there_are_enough_schemas() -> None:
    assert len(SCHEMAS) >= 40


def test_replies_on_the_demo_tokenizer_fit_their_schemas(demo_compiler: GrammarCompiler, demo: Vocabulary) -> None:
    tally = Tally()
    for name in SCHEMAS:
        check_replies(demo_compiler, demo, name, replies=1, tally=tally)
    assert tally.complete >= COMPLETE_SHARE * tally.replies


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", REAL_TOKENIZERS)
def test_many_replies_on_real_tokenizers_fit_their_schemas(
    engine: GrammarEngine, tokenizer: str, tmp_path: Path
) -> None:
    vocabulary = REAL_TOKENIZERS[tokenizer](tmp_path)
    compiler = engine.open(vocabulary)
    tally = Tally()
    for name in SCHEMAS:
        check_replies(compiler, vocabulary, name, replies=25, tally=tally)
    assert tally.complete >= COMPLETE_SHARE * tally.replies
