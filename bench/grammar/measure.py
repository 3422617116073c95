"""The measurements: single masks in processor time, batches in wall time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import islice, repeat

import msgspec
import numpy as np

from tgi_core.requests import TextTokenizer
from tgi_core.sampling.grammar import Constraints, Grammar, GrammarEngine, Matcher, Vocabulary

from .cases import CASES, Case
from .repliers import RandomReplier, Replier, TextReplier

BATCH = 64
BATCHES = 60
MAX_TOKENS = 200


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
