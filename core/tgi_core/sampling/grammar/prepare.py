"""From the constraint of a request to the one that is compiled, and the test whether it can be served."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tgi_core.sampling.grammar.engine import GrammarCompiler, GrammarError, Matcher, Vocabulary
from tgi_core.sampling.grammar.schema import normalize_schema, read_schema
from tgi_core.sampling.grammar.spec import Grammar, GrammarKind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TRIAL_FORCED_TOKENS = 32
"""Tokens without an alternative that a trial goes on by; most limits show at the first."""
TRIAL_FREE_TOKENS = 16
"""Tokens that a trial chooses, always the same ones; a lexer may need some until it grows beyond its limits."""


def prepare_grammar(grammar: Grammar, compiler: GrammarCompiler, vocabulary: Vocabulary) -> Grammar:
    """The normalized constraint, after it has been compiled and the first tokens of a reply have been tried.

    Raises:
        GrammarError: it is malformed, unsupported, too complex or matches nothing.
    """
    if grammar.kind is GrammarKind.JSON_SCHEMA:
        schema = normalize_schema(read_schema(grammar.source))
        grammar = Grammar(grammar.kind, json.dumps(schema, ensure_ascii=False, separators=(",", ":")))
    _try_reply(compiler.compile(grammar), compiler, vocabulary)
    return grammar


def _try_reply(matcher: Matcher, compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    """Do what a reply does first, where limits show that compiling does not reach: masks, and tokens accepted."""
    import numpy as np

    masks = np.empty((1, vocabulary.mask_words), np.int32)
    rng = np.random.default_rng(0)
    num_forced = num_free = 0
    while num_forced < TRIAL_FORCED_TOKENS and num_free < TRIAL_FREE_TOKENS:
        compiler.fill_masks([matcher], masks)
        _check(matcher)
        allowed = _allowed_ids(masks[0])
        going_on = allowed[~np.isin(allowed, vocabulary.eos_token_ids)]
        if not len(allowed):
            raise GrammarError("no output can match it")
        if not len(going_on):
            return
        num_forced += len(allowed) == 1
        num_free += len(allowed) > 1
        matcher.accept(int(rng.choice(going_on)))
        _check(matcher)


def _check(matcher: Matcher) -> None:
    if matcher.error:
        raise GrammarError(matcher.error)


def _allowed_ids(mask: NDArray[np.int32]) -> NDArray[np.intp]:
    import numpy as np

    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
