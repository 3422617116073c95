"""Text that spells a special token is text; a special token comes only where a grammar names it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.constrained import allowed_ids, sample_reply
from tests.support.real_tokenizers import REAL_TOKENIZERS
from tests.support.text_tokenizers import byte_level_json, encode
from tgi_core.requests import TextTokenizer
from tgi_core.sampling.grammar import (
    Grammar,
    GrammarCompiler,
    GrammarEngine,
    GrammarError,
    GrammarKind,
    Vocabulary,
)
from tgi_core.sampling.grammar.prepare import prepare_grammar


def special_texts(vocabulary: Vocabulary) -> dict[str, int]:
    tokens = json.loads(vocabulary.tokenizer_file.read_text(encoding="utf-8"))["added_tokens"]
    return {token["content"]: token["id"] for token in tokens if token["special"]}


def schema(value: Any) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value))


def constraints(text: str) -> dict[str, Grammar]:
    """Constraints that leave one reply with ``text`` in it, by that reply."""
    whole = f"a{text}b"
    quoted = json.dumps(whole, ensure_ascii=False)
    literal = re.escape(whole)
    return {
        json.dumps(text, ensure_ascii=False): schema({"const": text}),
        quoted: schema({"enum": [whole]}),
        f"{quoted} ": Grammar(GrammarKind.EBNF, f"start: {json.dumps(quoted + ' ', ensure_ascii=False)}"),
        f"<{quoted}>": Grammar(GrammarKind.EBNF, f'start: "<" %json {json.dumps({"const": whole})} ">"'),
        f"{{{quoted}:null}}": schema({"properties": {whole: {"type": "null"}}, "required": [whole], "type": "object"}),
        f"[{quoted}]": schema(
            {"type": "array", "items": {"type": "string", "pattern": f"^{literal}$"}, "minItems": 1, "maxItems": 1}
        ),
        whole: Grammar(GrammarKind.REGEX, literal),
        text: Grammar(GrammarKind.CHOICE, json.dumps([text])),
    }


def check_reply(
    compiler: GrammarCompiler, vocabulary: Vocabulary, tokenizer: TextTokenizer, grammar: Grammar, expected: str
) -> None:
    matcher = compiler.compile(prepare_grammar(grammar, compiler, vocabulary))
    reply = sample_reply(compiler, matcher, vocabulary, np.random.default_rng(1), max_tokens=200)
    assert reply.is_complete, grammar
    assert not tokenizer.special_ids & set(reply.token_ids), grammar
    assert tokenizer.decode(reply.token_ids, False).strip() == expected.strip()


def test_every_special_token_of_the_demo_is_text_in_every_constraint(
    demo_compiler: GrammarCompiler, demo: Vocabulary
) -> None:
    tokenizer = TextTokenizer(demo.tokenizer_file, workers=1)
    texts = special_texts(demo)
    assert len(texts) > 10
    for text in texts:
        for expected, grammar in constraints(text).items():
            check_reply(demo_compiler, demo, tokenizer, grammar, expected)


@pytest.mark.parametrize("name", ["mistral", "deepseek"])
def test_special_tokens_of_other_families_are_text(engine: GrammarEngine, name: str, tmp_path: Path) -> None:
    vocabulary = REAL_TOKENIZERS[name](tmp_path)
    compiler = engine.open(vocabulary)
    tokenizer = TextTokenizer(vocabulary.tokenizer_file, workers=1)
    texts = list(special_texts(vocabulary))
    for text in [*texts[:3], *texts[:: len(texts) // 3]]:
        for expected, grammar in constraints(text).items():
            check_reply(compiler, vocabulary, tokenizer, grammar, expected)


@pytest.mark.parametrize(("token_id", "text"), [(300, None), (1, "</s>")])
def test_tokens_that_end_replies_are_text_even_out_of_merges(
    engine: GrammarEngine, byte_level: Vocabulary, token_id: int, text: str | None
) -> None:
    """Of an ordinary token that is named as EOS the pieces are left to write its text."""
    vocabulary = Vocabulary(byte_level.tokenizer_file, 500, (token_id,))
    compiler = engine.open(vocabulary)
    tokenizer = TextTokenizer(vocabulary.tokenizer_file, workers=1)
    text = text or tokenizer.decode([token_id], False)
    matcher = compiler.compile(Grammar(GrammarKind.CHOICE, json.dumps([text])))
    reply = sample_reply(compiler, matcher, vocabulary, np.random.default_rng(1), max_tokens=50)
    assert reply.is_complete
    assert tokenizer.decode(reply.token_ids, False) == text


def test_added_tokens_that_are_not_special_stay_text(engine: GrammarEngine, tmp_path: Path) -> None:
    content = json.loads(byte_level_json())
    token_id = len(content["model"]["vocab"])
    added = {**content["added_tokens"][0], "id": token_id, "content": "<tool>", "special": False}
    content["added_tokens"].append(added)
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(content), encoding="utf-8")
    vocabulary = Vocabulary(file, 501, (1,))
    compiler = engine.open(vocabulary)
    matcher = compiler.compile(Grammar(GrammarKind.CHOICE, '["<tool>"]'))
    assert allowed_ids(compiler, matcher, vocabulary).tolist() == [token_id]


@pytest.mark.parametrize(
    ("source", "tokens"),
    [
        ('start: "a" <s> "b"', ["a", 0, "b"]),
        ('start: "a" <[0]> "b" // "quoted <nope>', ["a", 0, "b"]),
        ('# <nope>\nstart: "<nope>" /<\\/nope>/ <s>', ["<nope></nope>", 0]),
        ('start: "x" </s>', ["x", 1]),
        ('start: %json {"const": "<s>"} <s>', ['"<s>"', 0]),
    ],
)
def test_grammars_name_special_tokens(
    compiler: GrammarCompiler, byte_level: Vocabulary, source: str, tokens: list[str | int]
) -> None:
    plain = json.loads(byte_level.tokenizer_file.read_text(encoding="utf-8"))
    plain["added_tokens"] = []
    file = byte_level.tokenizer_file.with_name("plain.json")
    file.write_text(json.dumps(plain), encoding="utf-8")
    tokenizer = TextTokenizer(file, workers=1)
    grammar = prepare_grammar(Grammar(GrammarKind.EBNF, source), compiler, byte_level)
    matcher = compiler.compile(grammar)
    for token in tokens:
        for token_id in [token] if isinstance(token, int) else encode(tokenizer, token):
            assert token_id in allowed_ids(compiler, matcher, byte_level)
            assert matcher.accept(token_id)
    assert matcher.is_complete


def test_a_special_token_that_does_not_exist_is_refused(compiler: GrammarCompiler) -> None:
    with pytest.raises(GrammarError) as caught:
        compiler.compile(Grammar(GrammarKind.EBNF, 'start: "a" <|nope|> "b"'))
    assert caught.value.reason == "the tokenizer has no special token `<|nope|>`"


@pytest.mark.parametrize("source", ['start: "a" </s> "b"', 'start: "a" <[1]> "b"', "start: <[1]> <[1]>"])
def test_an_end_in_the_middle_is_refused(compiler: GrammarCompiler, byte_level: Vocabulary, source: str) -> None:
    with pytest.raises(GrammarError, match="ends the reply where the reply cannot end"):
        prepare_grammar(Grammar(GrammarKind.EBNF, source), compiler, byte_level)


@pytest.mark.parametrize(
    "source",
    ['start: "a" <[0-3]> "b"', 'start: "a" <[*]> "b"', 'start: "a" <[^0]> "b"', 'start: x "b"\nx[stop=""]: /a{1,9}/'],
)
def test_an_end_is_no_way_among_others(compiler: GrammarCompiler, byte_level: Vocabulary, source: str) -> None:
    matcher = compiler.compile(prepare_grammar(Grammar(GrammarKind.EBNF, source), compiler, byte_level))
    a = json.loads(byte_level.tokenizer_file.read_text(encoding="utf-8"))["model"]["vocab"]["a"]
    assert matcher.accept(a)
    allowed = allowed_ids(compiler, matcher, byte_level).tolist()
    assert allowed
    assert 1 not in allowed
