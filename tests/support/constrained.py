"""A model that knows nothing, sampling under masks."""

from __future__ import annotations

import ipaddress
import re
import uuid
from collections.abc import Callable, Sequence
from datetime import date, datetime, time
from urllib.parse import urlsplit

import msgspec
import numpy as np
from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.validators import validator_for
from numpy.typing import NDArray

from tgi_core.sampling.grammar import GrammarCompiler, Matcher, Vocabulary


class Reply(msgspec.Struct, frozen=True):
    """Sampled tokens without EOS; ``is_complete`` when EOS came before the limit."""

    token_ids: list[int]
    is_complete: bool


def allowed_ids(compiler: GrammarCompiler, matcher: Matcher, vocabulary: Vocabulary) -> NDArray[np.intp]:
    """The ids whose bits are set in the matcher's mask."""
    masks = np.full((1, vocabulary.mask_words), -1, np.int32)
    compiler.fill_masks([matcher], masks)
    assert matcher.error == ""
    return np.flatnonzero(np.unpackbits(masks[0].view(np.uint8), bitorder="little"))


def sample_reply(
    compiler: GrammarCompiler,
    matcher: Matcher,
    vocabulary: Vocabulary,
    rng: np.random.Generator,
    *,
    max_tokens: int,
    temperature: float = 1.5,
) -> Reply:
    """A reply of random logits, sampled at ``temperature`` under the masks."""
    token_ids: list[int] = []
    while len(token_ids) < max_tokens:
        allowed = allowed_ids(compiler, matcher, vocabulary)
        assert len(allowed), f"nothing is allowed after {token_ids}"
        assert allowed[-1] < vocabulary.vocab_size
        scores = rng.normal(size=len(allowed)) / temperature + rng.gumbel(size=len(allowed))
        token_id = int(allowed[np.argmax(scores)])
        if token_id in vocabulary.eos_token_ids:
            return Reply(token_ids, True)
        assert matcher.accept(token_id), matcher.error
        token_ids.append(token_id)
    return Reply(token_ids, False)


def schema_errors(schema: object, value: object) -> Sequence[str]:
    """What ``jsonschema`` has against the value, formats included."""
    validator = validator_for(schema, Draft202012Validator)(schema, format_checker=_FORMATS)
    return [error.message for error in validator.iter_errors(value)]


def _formats() -> FormatChecker:
    """Checks of formats that need no further packages."""
    host = r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)"
    checks: dict[str, Callable[[str], object]] = {
        "date": date.fromisoformat,
        # A leap second is right by the standard and unknown to Python.
        "time": lambda text: time.fromisoformat(_without_leap_second(text)),
        "date-time": lambda text: datetime.fromisoformat(_without_leap_second(text)),
        "uuid": uuid.UUID,
        "ipv4": ipaddress.IPv4Address,
        "ipv6": ipaddress.IPv6Address,
        "email": lambda text: _match(r'([^@\s"]+|".*")@[^@\s]+', text),
        "hostname": lambda text: _match(rf"{host}(\.{host})*", text),
        "duration": lambda text: _match(r"P(\d+W|(\d+Y)?(\d+M)?(\d+D)?(T(\d+H)?(\d+M)?(\d+S)?)?)", text),
        "uri": lambda text: _match(r"[A-Za-z][A-Za-z0-9+.-]*", urlsplit(text).scheme),
    }
    checker = FormatChecker(formats=())
    for name, check in checks.items():
        checker.checks(name, raises=ValueError)(_of_strings(check))
    return checker


def _of_strings(check: Callable[[str], object]) -> Callable[[object], bool]:
    def checked(value: object) -> bool:
        if isinstance(value, str):
            check(value)
        return True

    return checked


def _without_leap_second(text: str) -> str:
    # Python reads at most microseconds, and an hour of at most 23.
    return re.sub(r"(\.\d{1,6})\d*", r"\1", text.replace(":60", ":59").replace("t", "T").replace("z", "Z"))


def _match(pattern: str, text: str) -> None:
    if re.fullmatch(pattern, text) is None:
        raise ValueError(text)


_FORMATS = _formats()
