"""The built-in engine: what it lets through, token by token, on byte-level and byte-fallback tokenizers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.constrained import allowed_ids
from tests.support.text_tokenizers import byte_level_json, encode
from tgi_core.errors import StartupError
from tgi_core.requests import TextTokenizer
from tgi_core.sampling.grammar import (
    Grammar,
    GrammarCompiler,
    GrammarEngine,
    GrammarError,
    GrammarKind,
    Matcher,
    Vocabulary,
)

DOCUMENT = Path(__file__).parents[3] / "docs" / "structured-output.md"
REFUSED_KEYWORDS: dict[str, Any] = {
    "$dynamicRef": "#a",
    "$recursiveRef": "#",
    "contains": {},
    "dependencies": {"a": ["b"]},
    "dependentRequired": {"a": ["b"]},
    "dependentSchemas": {"a": {}},
    "else": {},
    "if": {},
    "maxContains": 1,
    "minContains": 1,
    "not": {},
    "propertyNames": {},
    "then": {},
    "unevaluatedItems": False,
    "unevaluatedProperties": False,
    "uniqueItems": True,
}
FORMATS = ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid")


def schema(value: Any) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value))


def regex(source: str) -> Grammar:
    return Grammar(GrammarKind.REGEX, source)


def choice(*options: str) -> Grammar:
    return Grammar(GrammarKind.CHOICE, json.dumps(options))


class Acceptor:
    """Whether texts fit a grammar, as their tokens' way through masks and matcher says."""

    def __init__(self, compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
        self._compiler = compiler
        self._vocabulary = vocabulary
        self._tokenizer = TextTokenizer(vocabulary.tokenizer_file, workers=1)

    def __call__(self, grammar: Grammar, text: str) -> bool:
        matcher = self._compiler.compile(grammar)
        for token_id in encode(self._tokenizer, text):
            fits = matcher.copy().accept(token_id)
            # A mask may also insist on one way of several to write what must come.
            assert fits or token_id not in allowed_ids(self._compiler, matcher, self._vocabulary)
            if not fits:
                return False
            assert matcher.accept(token_id)
        ends = set(self._vocabulary.eos_token_ids)
        allowed = set(allowed_ids(self._compiler, matcher, self._vocabulary).tolist())
        assert not matcher.is_complete or allowed == ends
        return ends <= allowed


@pytest.fixture(scope="session")
def fits(compiler: GrammarCompiler, byte_level: Vocabulary) -> Acceptor:
    return Acceptor(compiler, byte_level)


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        (regex("[0-9]{4}-[0-9]{2}"), ["2024-11"], ["2024-1", "x"]),
        (regex("(yes|no)"), ["yes", "no"], ["maybe", ""]),
        (regex("^(a|b)$"), ["a"], ["ab"]),
        (regex(".*"), ["", "日本語 🤗 é"], ["a\nb"]),
        (regex("日本語 🤗 é"), ["日本語 🤗 é"], ["日本"]),
        (regex(r"\d+"), ["12"], ["\u0661"]),
        (regex("a/b\n"), ["a/b\n"], ["a/b"]),
        (choice("a", "ab", "日本", 'with "quotes"\n'), ["a", "ab", "日本", 'with "quotes"\n'], ["", "b", "abc"]),
        (Grammar(GrammarKind.EBNF, 'start: "(" start ")" | "x"'), ["x", "((x))"], ["((x)", "(y)"]),
        (schema({}), ["1", '"a"', "[]", "null", '{"a":1}'], ["", "a"]),
        (schema({"type": "object"}), ["{}", '{"a":{"b":[1,null]}}'], ["[]", "1"]),
        (schema({"type": "string"}), ['"日本 é 🤗"', '"\\n\\""', '""'], ['"a', '"\n"', "a"]),
        (schema({"type": "string", "maxLength": 2}), ['"日本"', '"🤗🤗"'], ['"日本語"']),
        (schema({"type": "integer", "minimum": 3, "maximum": 12}), ["3", "12"], ["2", "13", "03"]),
        (schema({"oneOf": [{"type": "integer"}, {"type": "number"}]}), ["1", "1.5"], ['"a"']),
        (schema({"const": {"a": "é"}}), ['{"a":"é"}'], ['{"a":"e"}']),
    ],
    ids=lambda value: value.source if isinstance(value, Grammar) else None,
)
def test_what_fits(fits: Acceptor, grammar: Grammar, good: list[str], bad: list[str]) -> None:
    assert [text for text in good if not fits(grammar, text)] == []
    assert [text for text in bad if fits(grammar, text)] == []


def test_there_are_no_blanks_outside_of_strings(fits: Acceptor) -> None:
    grammar = schema({"type": "object", "properties": {"a": {"type": "array", "items": {"const": " \n "}}}})
    assert fits(grammar, '{"a":[" \\n "," \\n "]}')
    for text in (
        '{"a": []}',
        '{ "a":[]}',
        '{"a":[] }',
        '{\n"a":[]}',
        ' {"a":[]}',
        '{"a":[]} ',
        '{"a":[]}\n',
        '{"a":[ ]}',
    ):
        assert not fits(grammar, text), text


def test_a_schema_cannot_change_how_it_is_read(fits: Acceptor) -> None:
    options = {"lenient": True, "whitespace_pattern": " *", "item_separator": ";", "coerce_one_of": False}
    grammar = schema({"x-guidance": options, "oneOf": [{"type": "array", "items": {"const": 1}}, {"type": "array"}]})
    assert fits(grammar, "[1,1]")
    assert not fits(grammar, "[1;1]")
    assert not fits(grammar, "[ 1]")


def test_any_object_is_what_a_reply_is_without_a_schema(fits: Acceptor) -> None:
    assert fits(schema({"type": "object"}), '{"größe":["é",{"🤗":1e5}]}')


@pytest.mark.parametrize("name", ["byte_level", "metaspace"])
def test_special_tokens_and_logits_without_tokens_are_never_text(
    engine: GrammarEngine, name: str, request: pytest.FixtureRequest
) -> None:
    vocabulary: Vocabulary = request.getfixturevalue(name)
    compiler = engine.open(vocabulary)
    tokenizer = TextTokenizer(vocabulary.tokenizer_file, workers=1)
    matcher = compiler.compile(regex("(.|\n)*"))
    allowed = set(allowed_ids(compiler, matcher, vocabulary).tolist())
    assert set(vocabulary.eos_token_ids) <= allowed
    assert allowed & tokenizer.special_ids == set(vocabulary.eos_token_ids)
    assert max(allowed) < len(json.loads(vocabulary.tokenizer_file.read_text())["model"]["vocab"])
    for token_id in encode(tokenizer, "日本 é 🤗"):
        assert matcher.accept(token_id)


@pytest.mark.parametrize("name", ["byte_level", "metaspace"])
def test_no_half_of_a_character_ends_a_string(engine: GrammarEngine, name: str, request: pytest.FixtureRequest) -> None:
    vocabulary: Vocabulary = request.getfixturevalue(name)
    compiler = engine.open(vocabulary)
    tokenizer = TextTokenizer(vocabulary.tokenizer_file, workers=1)
    matcher = compiler.compile(choice("ķ", "ĸ"))
    first, _ = encode(tokenizer, "ķ")[-2:]
    assert matcher.accept(first)
    allowed = [
        tokenizer.decode([first, token_id], False)[-1] for token_id in allowed_ids(compiler, matcher, vocabulary)
    ]
    assert allowed == ["ķ", "ĸ"]


def test_the_end_is_allowed_only_where_it_may_be(compiler: GrammarCompiler, byte_level: Vocabulary) -> None:
    tokenizer = TextTokenizer(byte_level.tokenizer_file, workers=1)
    matcher = compiler.compile(regex("ab?"))
    a, b = encode(tokenizer, "a")[0], encode(tokenizer, "b")[0]
    assert not matcher.is_complete
    assert 1 not in allowed_ids(compiler, matcher, byte_level)
    assert matcher.accept(a)
    assert {1, b} <= set(allowed_ids(compiler, matcher, byte_level).tolist())
    assert matcher.accept(b)
    assert matcher.is_complete
    assert allowed_ids(compiler, matcher, byte_level).tolist() == [1]
    assert matcher.accept(1)


def test_an_impossible_token_ends_a_matcher_and_no_other(compiler: GrammarCompiler, byte_level: Vocabulary) -> None:
    tokenizer = TextTokenizer(byte_level.tokenizer_file, workers=1)
    matcher = compiler.compile(regex("aa"))
    a, x = encode(tokenizer, "a")[0], encode(tokenizer, "x")[0]
    assert matcher.accept(a)
    other = matcher.copy()
    assert not matcher.accept(x)
    assert matcher.error
    assert not matcher.is_complete
    assert not matcher.accept(a)
    assert other.error == ""
    assert other.accept(a)
    assert other.is_complete
    for impossible in (1, 499, 10_000):
        assert not compiler.compile(regex("aa")).accept(impossible)


@pytest.mark.parametrize("eos_token_ids", [(1, 65), (65,), (300, 1)])
def test_every_token_that_ends_replies_ends_them_and_is_no_text(
    engine: GrammarEngine, byte_level: Vocabulary, eos_token_ids: tuple[int, ...]
) -> None:
    """Even one that the tokenizer has as an ordinary token."""
    vocabulary = Vocabulary(byte_level.tokenizer_file, 500, eos_token_ids)
    compiler = engine.open(vocabulary)
    matcher = compiler.compile(regex("(.|\n)+"))
    assert not set(allowed_ids(compiler, matcher, vocabulary).tolist()) & set(eos_token_ids)
    assert matcher.accept(70)
    assert set(eos_token_ids) <= set(allowed_ids(compiler, matcher, vocabulary).tolist())
    done = compiler.compile(regex("a?"))
    assert set(eos_token_ids) <= set(allowed_ids(compiler, done, vocabulary).tolist())


def test_added_tokens_without_logits_are_left_out(engine: GrammarEngine, tmp_path: Path) -> None:
    content = json.loads(byte_level_json())
    content["added_tokens"].append({**content["added_tokens"][0], "id": 500, "content": "<image>", "special": False})
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(content), encoding="utf-8")
    vocabulary = Vocabulary(file, 500, (1,))
    compiler = engine.open(vocabulary)
    assert allowed_ids(compiler, compiler.compile(regex("<image>")), vocabulary)[-1] < 500


@pytest.mark.parametrize("content", ["", "{}", '{"added_tokens": 1}', '{"version": "1.0", "model": {"type": "BPE"}}'])
def test_a_tokenizer_that_cannot_be_used_is_refused(engine: GrammarEngine, tmp_path: Path, content: str) -> None:
    file = tmp_path / "tokenizer.json"
    with pytest.raises(StartupError, match=r"tokenizer\.json"):
        engine.open(Vocabulary(file, 500, (1,)))
    file.write_text(content)
    with pytest.raises(StartupError, match="cannot use the tokenizer"):
        engine.open(Vocabulary(file, 500, (1,)))
    file.write_text(byte_level_json())
    with pytest.raises(StartupError, match="no token 700"):
        engine.open(Vocabulary(file, 500, (700,)))


@pytest.mark.parametrize("keyword", REFUSED_KEYWORDS)
def test_unsupported_keywords_are_refused_by_name_and_place_and_listed(compiler: GrammarCompiler, keyword: str) -> None:
    inner = {keyword: REFUSED_KEYWORDS[keyword]}
    with pytest.raises(GrammarError) as caught:
        compiler.compile(schema({"properties": {"a": {"items": {"anyOf": [{"type": "null"}, inner]}}}}))
    assert f"`{keyword}`" in caught.value.reason
    assert caught.value.place == "#/properties/a/items/anyOf/1"
    assert caught.value.status == 422
    assert f"`{keyword}`" in DOCUMENT.read_text()


@pytest.mark.parametrize("name", FORMATS)
def test_formats_that_are_kept_are_listed(compiler: GrammarCompiler, name: str) -> None:
    compiler.compile(schema({"type": "string", "format": name}))
    assert f"`{name}`" in DOCUMENT.read_text()


@pytest.mark.parametrize(
    ("value", "place", "reason"),
    [
        ({"properties": {"a": {"type": "string", "format": "regex"}}}, "#/properties/a", "regex"),
        ({"properties": {"a": {"type": "string", "pattern": "(a"}}}, "#/properties/a", "unclosed group"),
        ({"properties": {"a": {"type": "string", "pattern": "(?=a)"}}}, "#/properties/a", "look-around"),
        ({"$defs": {"d": {"not": {}}}, "$ref": "#/$defs/d"}, "#/$defs/d", "`not`"),
        ({"properties": {"a": {"$ref": "#/$defs/none"}}}, "#/properties/a", "/$defs/none"),
        ({"properties": {"a": {"$ref": "https://example.org/s"}}}, "#/properties/a", "example.org"),
        ({"type": "object", "patternProperties": {"^a": {}, "^ab": {}}}, "#", "disjoint"),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "#", "Unsatisfiable"),
        ({"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 2}, "#", "roperties"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "#", "minLength"),
        ({"$ref": "#"}, "", "no output"),
    ],
)
def test_schemas_are_refused_with_place_and_reason(
    compiler: GrammarCompiler, value: dict[str, Any], place: str, reason: str
) -> None:
    with pytest.raises(GrammarError) as caught:
        compiler.compile(schema(value))
    assert caught.value.place == place
    assert reason in caught.value.reason


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("[a-", "unclosed character class, in the regular expression at character 1"),
        ("(", "unclosed group"),
        ("ab*a{5,2}", "at character 5"),
        ("*a", "missing expression"),
        (r"(a)\1", "backreferences"),
        ("(?=a)a", "look-around"),
        (r"\bfoo", "lookarounds"),
        ("a$b", "lookarounds"),
    ],
)
def test_regular_expressions_are_refused_with_a_reason(compiler: GrammarCompiler, source: str, reason: str) -> None:
    with pytest.raises(GrammarError) as caught:
        compiler.compile(regex(source))
    assert reason in caught.value.reason
    assert "\n" not in caught.value.reason


@pytest.mark.parametrize("source", ["hello", 'foo: "a"', "start: foo", "start: <|nope|>", "start: /[a-/", 'start: "a'])
def test_grammars_are_refused_with_a_reason(compiler: GrammarCompiler, source: str) -> None:
    with pytest.raises(GrammarError) as caught:
        compiler.compile(Grammar(GrammarKind.EBNF, source))
    assert caught.value.reason
    assert "\n" not in caught.value.reason


def test_a_copy_goes_its_own_way(compiler: GrammarCompiler, byte_level: Vocabulary) -> None:
    tokenizer = TextTokenizer(byte_level.tokenizer_file, workers=1)
    matcher = compiler.compile(choice("ab", "cd"))
    copies: dict[str, Matcher] = {text: matcher.copy() for text in ("ab", "cd")}
    for text, copy in copies.items():
        for token_id in encode(tokenizer, text):
            assert copy.accept(token_id)
    assert all(copy.is_complete for copy in copies.values())
    assert not matcher.is_complete
