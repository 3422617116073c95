"""Where llguidance reads a schema too widely, what is compiled allows no more than the schema does."""

from __future__ import annotations

import itertools
import json
import random
import re
from datetime import date
from typing import Any

import numpy as np
import pytest

from tests.support.constrained import allowed_ids, sample_reply
from tests.support.text_tokenizers import encode
from tgi_core.requests import TextTokenizer
from tgi_core.sampling.grammar import Grammar, GrammarCompiler, GrammarError, GrammarKind, Matcher, Vocabulary
from tgi_core.sampling.grammar.llguidance_pattern import without_nul
from tgi_core.sampling.grammar.llguidance_schema import FORMAT_PATTERNS, library_schema

ESCAPES = ('\\"', "\\\\", "\\n", "\\t", "\\b", "\\f", "\\r", "\\u0001", "\\u001f", "\\u000B", "\\u007f")
CLASSES = (
    '[^"]',
    r"[^\\]",
    r'[^"\\]',
    r"[^\\/]",
    r'[^"\n]',
    r'[^\n\r"]',
    r'[^"\x00]',
    r"[^!-~]",
    r"[^A-z]",
    "[^a-z]",
    "[^.,-]",
    r"[^\s]",
    r"[\x00-\x1f]",
    r"[\x00-!#-\[]",
    r"[\x00-\x21a]",
    "[]a]",
    "[^]a]",
    "[^-]",
    r'[^\d"]',
    r'[^\w"]',
    r'["\\]',
    "[a-z]",
    r"\s",
    r"\d",
    r"\w",
    r"\W",
    r"\D",
    ".",
)


def schema(value: Any) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value))


def fits(compiler: GrammarCompiler, tokenizer: TextTokenizer, matcher: Matcher, text: str) -> bool:
    matcher = matcher.copy()
    return all(matcher.accept(token_id) for token_id in encode(tokenizer, text)) and matcher.is_complete


@pytest.mark.parametrize("source", CLASSES)
def test_a_class_allows_the_escapes_of_its_characters_only(
    compiler: GrammarCompiler, byte_level: Vocabulary, source: str
) -> None:
    tokenizer = TextTokenizer(byte_level.tokenizer_file, workers=1)
    matcher = compiler.compile(schema({"type": "string", "pattern": f"^{source}$"}))
    named = compiler.compile(
        schema({"type": "object", "patternProperties": {f"^{source}$": {}}, "additionalProperties": False})
    )
    plain = [chr(code) for code in range(32, 127) if chr(code) not in '"\\']
    for written in (*ESCAPES, *plain):
        text = f'"{written}"'
        is_right = re.search(f"^{source}$", json.loads(text), re.ASCII) is not None
        assert fits(compiler, tokenizer, matcher, text) == is_right, text
        assert fits(compiler, tokenizer, named, f"{{{text}:1}}") == is_right, text


@pytest.mark.parametrize("source", [r"^\x00$", r"^\x{0}a$", "^\0$", r"^[\x00]$", r"^\u0000$"])
def test_u0000_is_in_no_string_that_a_pattern_describes(compiler: GrammarCompiler, source: str) -> None:
    with pytest.raises(GrammarError):
        compiler.compile(schema({"type": "string", "pattern": source}))


@pytest.mark.parametrize(
    "pattern",
    ["^a{1,3}$", r"[a-z0-9_.-]+\s\d", r"[^a-z.,\s]", r"(?P<a[0]>x)\[y\]", r"\p{L}\P{Lu}[^é]", "", r"\\[ab]"],
)
def test_most_patterns_stay_as_they_are_written(pattern: str) -> None:
    assert without_nul(pattern) == pattern


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ('a[^"]b', r'a[[^"]--\x00]b'),
        (r"[^]\"]", r"[[^]\"]--\x00]"),
        (r"[[a-z]&&[^\\]]+", r"[[[a-z]&&[^\\]]--\x00]+"),
        (r"[[:^alpha:]x]", r"[[[:^alpha:]x]--\x00]"),
        ("[^-\\x7f]]", "[[^-\\x7f]--\\x00]]"),
        (r"\p{Cc}\PL", r"[\p{Cc}--\x00]\PL"),
    ],
)
def test_other_classes_lose_u0000(pattern: str, expected: str) -> None:
    assert without_nul(pattern) == expected


@pytest.mark.parametrize(("pattern", "reason"), [("[^a", "not closed"), ("(?x)[ a ]", "flag `x`"), ("(?ix:a)", "flag")])
def test_patterns_that_cannot_be_read_are_refused(compiler: GrammarCompiler, pattern: str, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason) as caught:
        compiler.compile(schema({"items": {"pattern": pattern}}))
    assert caught.value.place == "#/items"


def random_pattern(rng: random.Random) -> str:
    # Blanks are Unicode's in Rust and not in Python under re.ASCII.
    atoms = [*(source for source in CLASSES if r"\s" not in source), "a", '"', r"\\", r"\n"]
    pieces = []
    for _ in range(rng.randint(1, 3)):
        piece = rng.choice(atoms)
        if rng.random() < 0.4:
            piece = f"(?:{piece}|{rng.choice(atoms)})"
        pieces.append(piece + rng.choice(["", "", "?", "{1,2}", "*"]))
    return f"^{''.join(pieces)}$" if rng.random() < 0.8 else "".join(pieces)


def test_replies_match_their_patterns(compiler: GrammarCompiler, byte_level: Vocabulary) -> None:
    """Random patterns, and a model with a liking for what is escaped."""
    tokenizer = TextTokenizer(byte_level.tokenizer_file, workers=1)
    marked = [token_id for token_id in range(480) if set(tokenizer.decode([token_id], False)) & {'"', "\\"}]
    source, rng = random.Random(7), np.random.default_rng(7)
    complete = 0
    for _ in range(150):
        pattern = random_pattern(source)
        first = compiler.compile(schema({"type": "string", "pattern": pattern}))
        for _ in range(4):
            matcher, token_ids = first.copy(), []
            while len(token_ids) < 40:
                allowed = allowed_ids(compiler, matcher, byte_level)
                if 1 in allowed:
                    complete += 1
                    value = json.loads(tokenizer.decode(token_ids, False))
                    assert re.search(pattern, value, re.ASCII), (pattern, value)
                    break
                liked = np.intersect1d(allowed, marked)
                token_ids.append(int(rng.choice(liked if len(liked) and rng.random() < 0.7 else allowed)))
                assert matcher.accept(token_ids[-1])
    assert complete > 400


def test_names_outside_of_a_pattern_that_is_narrowed_are_not_let_through(compiler: GrammarCompiler) -> None:
    names = {'^[^"]$': {"const": 1}}
    with pytest.raises(GrammarError, match="needs `additionalProperties: false`") as caught:
        compiler.compile(schema({"items": {"patternProperties": names}}))
    assert caught.value.place == "#/items"
    compiler.compile(schema({"items": {"patternProperties": names, "additionalProperties": False}}))
    compiler.compile(schema({"items": {"patternProperties": {"^[^a-z]$": {"const": 1}}}}))


def test_schemas_in_grammars_are_narrowed_too(compiler: GrammarCompiler, byte_level: Vocabulary) -> None:
    tokenizer = TextTokenizer(byte_level.tokenizer_file, workers=1)
    inner = json.dumps({"type": "string", "pattern": '^[^"]$'})
    matcher = compiler.compile(Grammar(GrammarKind.EBNF, f"start: %json {inner}"))
    assert fits(compiler, tokenizer, matcher, '"a"')
    assert not fits(compiler, tokenizer, matcher, '"\\""')
    with pytest.raises(GrammarError) as caught:
        compiler.compile(Grammar(GrammarKind.EBNF, 'start: "a" %json {"items": {"not": {}}}'))
    assert (caught.value.place, caught.value.reason) == ("#/items", "`not` is not supported")


def test_dates_are_those_of_the_calendar() -> None:
    years = [*range(1, 13), 100, 400, 1600, 1900, *range(1995, 2009), 2100, 2400, 9996, 9999]
    for year, month, day in itertools.product(years, range(14), range(33)):
        text = f"{year:04}-{month:02}-{day:02}"
        try:
            date(year, month, day)
        except ValueError:
            is_date = False
        else:
            is_date = True
        assert (re.search(FORMAT_PATTERNS["date"], text) is not None) == is_date, text
    assert re.search(FORMAT_PATTERNS["date"], "0000-01-01") is None


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("date", ["2024-02-29", "2000-02-29"], ["2023-02-29", "1900-02-29", "2024-02-30"]),
        ("time", ["23:59:59Z", "00:00:00.5+01:30"], ["23:59:60Z", "24:00:00Z", "10:00:00"]),
        ("date-time", ["2024-02-29T10:00:00Z"], ["2023-02-29T10:00:00Z", "2024-02-29T10:00:60Z", "2024-02-29"]),
    ],
)
def test_formats_of_time(
    compiler: GrammarCompiler, byte_level: Vocabulary, name: str, good: list[str], bad: list[str]
) -> None:
    tokenizer = TextTokenizer(byte_level.tokenizer_file, workers=1)
    for value in ({"format": name}, {"format": name, "pattern": "^[0-9]"}, {"format": name, "allOf": [{}]}):
        matcher = compiler.compile(schema({"type": "string", **value}))
        assert [text for text in good if not fits(compiler, tokenizer, matcher, f'"{text}"')] == []
        assert [text for text in bad if fits(compiler, tokenizer, matcher, f'"{text}"')] == []


@pytest.mark.parametrize("value", [(1 << 53) + 1, 1234567890123456789, (1 << 63) - 1, 10**30])
def test_integers_that_floats_do_not_hold_are_refused(compiler: GrammarCompiler, value: int) -> None:
    for inner in ({"const": value}, {"enum": [1, value]}, {"const": {"a": [value]}}, {"enum": [{"a": -value}]}):
        with pytest.raises(GrammarError, match=r"integer beyond 2\^53") as caught:
            compiler.compile(schema({"properties": {"id": inner}}))
        assert caught.value.place == "#/properties/id"


def test_integers_that_floats_hold_are_kept(compiler: GrammarCompiler, byte_level: Vocabulary) -> None:
    tokenizer = TextTokenizer(byte_level.tokenizer_file, workers=1)
    for value in (1 << 53, 1 << 62, -(1 << 62)):
        reply = sample_reply(
            compiler, compiler.compile(schema({"const": value})), byte_level, np.random.default_rng(1), max_tokens=40
        )
        assert json.loads(tokenizer.decode(reply.token_ids, False)) == value


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"maximum": (1 << 63) - 1}, {"maximum": (1 << 63) - 1024}),
        ({"minimum": (1 << 53) + 1}, {"minimum": (1 << 53) + 2}),
        ({"exclusiveMaximum": -(1 << 53) - 1}, {"exclusiveMaximum": -(1 << 53) - 2}),
        ({"minimum": -(1 << 63)}, {"minimum": -(1 << 63) + 1024}),
        ({"minimum": -1e19}, {"minimum": -(1 << 63) + 1024}),
        ({"maximum": 1e19}, {"maximum": 1e19}),
        ({"minimum": 1 << 53, "maximum": 1 << 60}, {"minimum": 1 << 53, "maximum": 1 << 60}),
        ({"exclusiveMaximum": True, "maximum": 5}, {"exclusiveMaximum": True, "maximum": 5}),
    ],
)
def test_bounds_move_inwards(compiler: GrammarCompiler, given: dict[str, Any], kept: dict[str, Any]) -> None:
    assert library_schema({"type": "integer", **given}) == {"type": "integer", **kept}
    compiler.compile(schema({"type": "integer", **given}))


@pytest.mark.parametrize(
    ("bounds", "reason"),
    [
        ({"minimum": (1 << 63) - 1}, "`minimum` leaves only integers at the ends of 64 bits or beyond"),
        ({"maximum": -1e19}, "`maximum` leaves only"),
        ({"minimum": (1 << 60) + 1, "maximum": (1 << 60) + 1}, "too close to each other"),
        ({"maximum": 10**400}, "beyond the range of 64-bit floats"),
    ],
)
def test_bounds_that_cannot_be_kept_are_refused(bounds: dict[str, Any], reason: str) -> None:
    with pytest.raises(GrammarError) as caught:
        library_schema({"items": {"type": ["integer", "null"], **bounds}})
    assert reason in caught.value.reason
    assert caught.value.place == "#/items"


@pytest.mark.parametrize("reference", ["#/components/a~1b", "#/components/a%7E1b", "#/x-list/1/inner"])
def test_schemas_that_only_a_reference_leads_to_are_narrowed(reference: str) -> None:
    inner = {"items": {"format": "date"}}
    value = {"$ref": reference, "components": {"a/b": inner}, "x-list": [0, {"inner": inner}]}
    narrowed = library_schema(value)
    parts = {"components": narrowed["components"]["a/b"], "x-list": narrowed["x-list"][1]["inner"]}
    assert parts[reference.split("/")[1]] == {"items": {"pattern": FORMAT_PATTERNS["date"]}}


def test_references_that_lead_nowhere_or_round_are_left_to_the_library() -> None:
    value = {"anyOf": [{"$ref": "#/a/b"}, {"$ref": "#/anyOf/7"}, {"$ref": "#"}, {"$ref": "#/anyOf/3"}]}
    assert library_schema(value) == value


def test_the_schema_itself_is_left_alone() -> None:
    value = {"items": {"format": "date", "pattern": '[^"]', "maximum": (1 << 63) - 1}}
    before = json.dumps(value)
    assert library_schema(value) != value
    assert json.dumps(value) == before
