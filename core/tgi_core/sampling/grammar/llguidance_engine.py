"""The engine that ships: llguidance, an Earley parser over lazily built lexers (https://github.com/guidance-ai/llguidance)."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from tgi_core.errors import ExitCode, StartupError
from tgi_core.sampling.grammar.engine import GrammarCompiler, GrammarEngine, GrammarError, Matcher, Vocabulary
from tgi_core.sampling.grammar.llguidance_lark import rewrite_lark, schemas_in
from tgi_core.sampling.grammar.llguidance_schema import library_schema
from tgi_core.sampling.grammar.llguidance_tokenizer import library_tokenizer
from tgi_core.sampling.grammar.schema import JsonSchema, children
from tgi_core.sampling.grammar.spec import Grammar, GrammarKind

if TYPE_CHECKING:
    import llguidance
    import numpy as np
    from numpy.typing import NDArray

# The library counts work, not time, so what passes the test in one process passes in every other.
MAX_GRAMMAR_SYMBOLS = 500_000
INITIAL_LEXER_FUEL = 1_000_000
"""Work of building the lexer, about 20 to 500 ms."""
STEP_LEXER_FUEL = 200_000
"""Lexer work for one mask, about 15 ms; a usual mask needs a hundredth."""
STEP_PARSER_ITEMS = 50_000
"""Parser work for one mask, about 3 ms."""
ROW_PARSER_ITEMS = 2_000
LEXER_STATES = 50_000
"""States a grammar's lexer may have in all, 1 to 2 kB each."""

_STRING_CHARACTER = r'[^"\\\x00-\x1F\x7F]'
TOKEN_SLICES = (
    r"[\x20\x0A\x0D\x09]+",
    *(f"{_STRING_CHARACTER}{{1,{longest}}}" for longest in (4, 8, 12, 16, 24, 32)),
    f"{_STRING_CHARACTER}+",
)
"""Groups of tokens that a mask takes in as a whole where all of a group fits, each token in the first that has it.

The library's own choice has fewer lengths; with these a mask inside a string that has a ``maxLength`` costs half.
"""

MAX_MASK_THREADS = 8
_LOCATE_BUDGET_S = 0.5
_MAX_REASON_LENGTH = 300
_DEFINITIONS = ("$defs", "definitions")

_JSON_OPTIONS = {
    # JSON in its shortest form: blanks cost tokens, and a weak model may write nothing else.
    "whitespace_flexible": False,
    "whitespace_pattern": None,
    "item_separator": ",",
    "key_separator": ":",
    # Read oneOf as anyOf: almost every schema means it so, and the exclusive form is rarely decidable.
    "coerce_one_of": True,
    "lenient": False,
}
"""Given as overrides, so that a schema's own ``x-guidance`` changes none of them."""


class LLGuidanceEngine(GrammarEngine):
    """JSON schemas, regular expressions, Lark grammars and choices through llguidance."""

    @property
    def name(self) -> str:
        return "llguidance"

    def open(self, vocabulary: Vocabulary) -> GrammarCompiler:
        """Build the library's tokenizer, 0.2 to 2 s; the interpreter lock is held meanwhile."""
        import llguidance

        try:
            known = library_tokenizer(vocabulary)
            tokenizer = llguidance.LLTokenizer(
                known.source,
                n_vocab=vocabulary.vocab_size,
                eos_token=list(vocabulary.eos_token_ids),
                slices=list(TOKEN_SLICES),
            )
        except (OSError, TypeError, ValueError, LookupError, msgspec.MsgspecError) as error:
            raise StartupError(
                f"llguidance cannot use the tokenizer {vocabulary.tokenizer_file}: {error}.",
                "Choose another grammar engine, or disable grammars.",
                ExitCode.MODEL,
            ) from error
        return LLGuidanceCompiler(tokenizer, vocabulary, known.special_ids)


class LLGuidanceCompiler(GrammarCompiler):
    """The opened library: a tokenizer and a pool of threads for masks, made when the first is asked for."""

    def __init__(
        self, tokenizer: llguidance.LLTokenizer, vocabulary: Vocabulary, special_ids: Mapping[str, int]
    ) -> None:
        """``special_ids``: the special tokens by the text that names them in grammars."""
        import llguidance

        self._tokenizer = tokenizer
        self._special_ids = special_ids
        self._eos_token_ids = vocabulary.eos_token_ids
        self._mask_bytes = vocabulary.mask_words * 4
        self._limits = llguidance.LLParserLimits(
            max_items_in_row=ROW_PARSER_ITEMS,
            initial_lexer_fuel=INITIAL_LEXER_FUEL,
            step_lexer_fuel=STEP_LEXER_FUEL,
            step_max_items=STEP_PARSER_ITEMS,
            max_lexer_states=LEXER_STATES,
            max_grammar_size=MAX_GRAMMAR_SYMBOLS,
            verbose_errors=False,
        )
        self._executor: llguidance.LLExecutor | None = None

    def compile(self, grammar: Grammar) -> Matcher:
        """As ``GrammarCompiler.compile``; makes the first mask too, where most of a lexer's work is done."""
        import llguidance

        match grammar.kind:
            case GrammarKind.JSON_SCHEMA:
                return self._compile_schema(json.loads(grammar.source))
            case GrammarKind.EBNF:
                return self._compile_lark(grammar.source)
            case GrammarKind.REGEX:
                source = llguidance.LLMatcher.grammar_from_regex(llguidance.regex_to_lark(grammar.source, "d"))
            case GrammarKind.CHOICE:
                # One terminal: the whole list is one automaton, however long it is.
                options = "\n  | ".join(json.dumps(option) for option in json.loads(grammar.source))
                source = llguidance.LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {options}\n")
        matcher = self._matcher(source)
        if matcher.is_error():
            raise GrammarError(_readable(matcher.get_error()))
        return self._started(matcher)

    def fill_masks(self, matchers: Sequence[Matcher], masks: NDArray[np.int32]) -> None:
        """As ``GrammarCompiler.fill_masks``; several masks are made by the library's own threads."""
        inner = [_own(matcher) for matcher in matchers]
        if len(inner) == 1:
            inner[0].inner.unsafe_compute_mask_ptr(masks.ctypes.data, self._mask_bytes)
        else:
            rows = [(matcher.inner, row) for row, matcher in enumerate(inner)]
            self._threads().unsafe_compute_mask_ptr(rows, masks.ctypes.data, self._mask_bytes, len(rows))
        for matcher, mask in zip(inner, masks, strict=True):
            if matcher.names_tokens:
                self._forbid_early_ends(matcher, mask)

    def close(self) -> None:
        self._executor = None

    def _threads(self) -> llguidance.LLExecutor:
        if self._executor is None:
            import llguidance

            # At least as many as there are callers: a slow mask must not hold up the others.
            self._executor = llguidance.LLExecutor(min(MAX_MASK_THREADS, max(4, (os.cpu_count() or 1) // 2)))
        return self._executor

    def _matcher(self, source: str) -> llguidance.LLMatcher:
        import llguidance

        return llguidance.LLMatcher(self._tokenizer, source, log_level=0, limits=self._limits)

    def _started(self, matcher: llguidance.LLMatcher) -> LLGuidanceMatcher:
        matcher.compute_bitmask()
        if matcher.is_stopped() and not matcher.is_accepting():
            error = matcher.get_error().partition("\n")[0]
            raise GrammarError("no output can match it" if error in _NO_EXTENSION else _readable(error))
        return LLGuidanceMatcher(matcher)

    def _compile_schema(self, schema: JsonSchema) -> Matcher:
        matcher = self._matcher(_schema_source(library_schema(schema)))
        if not matcher.is_error():
            return self._started(matcher)
        raise self._schema_error(schema) or GrammarError(_readable(matcher.get_error()), "#")

    def _schema_error(self, schema: JsonSchema) -> GrammarError | None:
        """Why the library refuses a schema as the client has written it; None when it does not."""
        message = self._matcher(_schema_source(schema)).get_error()
        return GrammarError(_readable(message), self._locate(schema, message)) if message else None

    def _compile_lark(self, source: str) -> Matcher:
        import llguidance

        rewritten = rewrite_lark(source, self._special_ids, library_schema)
        matcher = self._matcher(llguidance.LLMatcher.grammar_from_lark(rewritten))
        if matcher.is_error():
            message = matcher.get_error()
            if _JSON_IN_LARK in message:
                errors = (self._schema_error(schema) for schema in schemas_in(source))
                raise next(filter(None, errors), GrammarError(_readable(message)))
            raise GrammarError(_readable(message))
        return LLGuidanceMatcher(self._started(matcher).inner, names_tokens=True)

    def _forbid_early_ends(self, matcher: LLGuidanceMatcher, mask: NDArray[np.int32]) -> None:
        """Take EOS out of a mask where a grammar asks for it as a token, unless the reply is complete with it."""
        if matcher.error or matcher.inner.is_accepting():
            return
        words = mask.view("uint32")
        for token_id in self._eos_token_ids:
            word, bit = token_id // 32, 1 << token_id % 32
            if words[word] & bit and not _completes(matcher.inner.deep_copy(), token_id):
                words[word] ^= bit
                if not words.any():
                    matcher.failure = "it asks for a token that ends the reply where the reply cannot end"

    def _locate(self, schema: JsonSchema, message: str) -> str:
        """The innermost part of a refused schema that the library refuses by itself with the same message."""
        deadline = time.monotonic() + _LOCATE_BUDGET_S
        definitions = {keyword: schema[keyword] for keyword in _DEFINITIONS if keyword in schema}
        place, current = "#", schema
        while True:
            for inner_place, inner in children(place, current):
                if time.monotonic() > deadline:
                    return place
                if isinstance(inner, dict) and self._refuses({**definitions, **inner}, message):
                    place, current = inner_place, inner
                    break
            else:
                return place

    def _refuses(self, schema: JsonSchema, message: str) -> bool:
        return self._matcher(_schema_source(schema)).get_error() == message


class LLGuidanceMatcher(Matcher):
    """The library's matcher. A copy takes along what its lexer has been built up to and goes on by itself."""

    def __init__(self, matcher: llguidance.LLMatcher, *, names_tokens: bool = False) -> None:
        """``names_tokens``: the grammar may ask for tokens by name or id, those that end replies too."""
        self.inner = matcher
        self.names_tokens = names_tokens
        self.failure = ""

    def accept(self, token_id: int) -> bool:
        return self.inner.consume_token(token_id)

    @property
    def error(self) -> str:
        return self.failure or (_readable(self.inner.get_error()) if self.inner.is_error() else "")

    @property
    def is_complete(self) -> bool:
        return self.inner.is_stopped() and not self.error

    def copy(self) -> LLGuidanceMatcher:
        return LLGuidanceMatcher(self.inner.deep_copy(), names_tokens=self.names_tokens)


_JSON_IN_LARK = "failed to compile JSON schema: "
_NO_EXTENSION = ("", "NoExtension", "NoExtensionBias")


def _schema_source(schema: JsonSchema) -> str:
    import llguidance

    try:
        return llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=_JSON_OPTIONS)  # type: ignore[arg-type]
    except ValueError as error:
        raise GrammarError(f"the schema cannot be read: {error}") from error


def _completes(matcher: llguidance.LLMatcher, token_id: int) -> bool:
    return matcher.consume_token(token_id) and matcher.is_accepting()


def _own(matcher: Matcher) -> LLGuidanceMatcher:
    if not isinstance(matcher, LLGuidanceMatcher):
        raise TypeError(f"a matcher of another engine: {type(matcher).__name__}")
    return matcher


def _readable(message: str) -> str:
    """The library's message as one sentence."""
    keywords = re.match(r"Unimplemented keys: \[(.*)\]", message)
    if keywords is not None:
        names = ", ".join(f"`{json.loads(name)}`" for name in keywords[1].split(", "))
        return f"{names} is not supported" if "," not in names else f"{names} are not supported"
    regex = re.search(r"regex parse error:\n    (?P<regex>.*)\n    (?P<caret> *)\^+\nerror: (?P<reason>.*)", message)
    if regex is not None:
        return f"{regex['reason']}, in the regular expression at character {len(regex['caret']) + 1}"
    if "ff_tokens" in message:
        return "it demands a text without an end, or one that is too long"
    first = re.sub(r'^at \d+\(\d+\): invalid regex ".*" \(in regex\): ', "", message.partition("\n")[0])
    return first if len(first) <= _MAX_REASON_LENGTH else f"{first[: _MAX_REASON_LENGTH - 3]}..."
