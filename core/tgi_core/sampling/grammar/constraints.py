"""Constraints in the engine process: matchers are built and masks are made on threads, beside the loop."""

from __future__ import annotations

import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from tgi_core.errors import ValidationError
from tgi_core.sampling.grammar.engine import GrammarEngine, GrammarError, Matcher, Vocabulary
from tgi_core.sampling.grammar.spec import Grammar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

COMPILED_GRAMMARS = 64
"""Compiled constraints that are kept for requests to come."""
BUILD_THREADS = 2
MASK_THREADS = 4
"""Batches of masks in work at once. They wait in the library, outside of the interpreter lock."""
BATCH_ROWS = 4
"""Masks made by one call: few, because all of them are ready when the slowest is."""


class Constraints:
    """Builds matchers and makes their masks.

    The grammar engine is opened on a thread as soon as this object exists; what is asked for meanwhile waits. Opening
    may hold the interpreter lock for a second or two, so an engine process lets it finish (``wait_open``) before it
    serves. All methods are called by one thread, the loop's.
    """

    def __init__(self, engine: GrammarEngine, vocabulary: Vocabulary) -> None:
        self._mask_words = vocabulary.mask_words
        self._builders = ThreadPoolExecutor(BUILD_THREADS, thread_name_prefix="grammar")
        self._compiler = self._builders.submit(engine.open, vocabulary)
        self._compiled: OrderedDict[Grammar, Future[Matcher]] = OrderedDict()
        self._batches: queue.SimpleQueue[Sequence[_MaskedMatcher] | None] = queue.SimpleQueue()
        self._progress = threading.Condition()
        self._mask_threads = [
            threading.Thread(target=self._make_masks, name=f"masks-{number}", daemon=True)
            for number in range(MASK_THREADS)
        ]
        for thread in self._mask_threads:
            thread.start()

    def wait_open(self) -> str:
        """Wait until the grammar engine is open. Returns why it cannot be used, "" when it can."""
        error = self._compiler.exception()
        return "" if error is None else str(error)

    def prepare(self, grammar: Grammar) -> Future[Matcher]:
        """A matcher before its first token, compiled on a thread or copied from one that is kept.

        The future fails with GrammarError where ``grammar`` cannot be compiled.
        """
        compiled = self._compiled.get(grammar)
        if compiled is None:
            compiled = self._compiled[grammar] = self._builders.submit(self._compile, grammar)
            while len(self._compiled) > COMPILED_GRAMMARS:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(grammar)
        matcher: Future[Matcher] = Future()
        compiled.add_done_callback(lambda done: _hand_out(done, matcher))
        return matcher

    def start_masks(self, matchers: Sequence[Matcher]) -> MaskJob:
        """Begin the masks of the next tokens of ``matchers``, which are those that ``prepare`` gave.

        A mask belongs to its matcher until a token is accepted: one that an earlier job has begun goes on, one that is
        ready stays so. So a row that sits a step out is simply asked for again.
        """
        masked = [_masked(matcher) for matcher in matchers]
        starting = [matcher for matcher in masked if not matcher.is_started]
        for matcher in starting:
            matcher.is_started = True
        for first in range(0, len(starting), BATCH_ROWS):
            self._batches.put(starting[first : first + BATCH_ROWS])
        return MaskJob(masked, self._progress)

    def close(self) -> None:
        """Stop the threads; matchers and masks that are not made yet are given up."""
        self._builders.shutdown(wait=True, cancel_futures=True)
        for _ in self._mask_threads:
            self._batches.put(None)
        for thread in self._mask_threads:
            thread.join()
        if not self._compiler.cancelled() and self._compiler.exception() is None:
            self._compiler.result().close()

    def _compile(self, grammar: Grammar) -> Matcher:
        try:
            return self._compiler.result().compile(grammar)
        except ValidationError:
            raise
        except Exception as error:  # an engine may raise anything; only this grammar's requests may suffer
            raise GrammarError(f"the grammar engine failed: {type(error).__name__}: {error}") from error

    def _make_masks(self) -> None:
        # Here, so that the command line need not load it.
        import numpy as np

        while (batch := self._batches.get()) is not None:
            masks = np.empty((len(batch), self._mask_words), np.int32)
            failure = ""
            try:
                self._compiler.result().fill_masks([matcher.inner for matcher in batch], masks)
            except Exception as error:  # as above
                failure = f"the grammar engine failed: {type(error).__name__}: {error}"
            with self._progress:
                for matcher, mask in zip(batch, masks, strict=True):
                    matcher.mask = mask
                    matcher.failure = failure
                    matcher.is_ready = True
                self._progress.notify_all()


class MaskJob:
    """The masks of some matchers, each ready by itself. Row i is that of the i-th matcher."""

    def __init__(self, matchers: Sequence[_MaskedMatcher], progress: threading.Condition) -> None:
        self._matchers = matchers
        self._progress = progress

    def wait(self, timeout_s: float) -> bool:
        """Wait until all masks are ready, at most ``timeout_s``. Returns whether they are."""
        deadline = time.monotonic() + timeout_s
        with self._progress:
            while not all(matcher.is_ready for matcher in self._matchers):
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0:
                    return False
                self._progress.wait(remaining_s)
        return True

    def wait_any(self) -> None:
        """Wait until at least one mask is ready."""
        with self._progress:
            self._progress.wait_for(lambda: any(matcher.is_ready for matcher in self._matchers))

    def ready_rows(self) -> list[int]:
        """The rows whose mask is ready, or whose matcher has failed over it: then its ``error`` is set."""
        return [row for row, matcher in enumerate(self._matchers) if matcher.is_ready]

    def masks(self, rows: Sequence[int]) -> bytes:
        """The masks of ready rows one after the other, as ``LateInputs.masks`` has them."""
        return b"".join(self._matchers[row].mask_data() for row in rows)


class _MaskedMatcher(Matcher):
    """A matcher with the mask of its next token.

    The loop's thread owns it, but for the time from ``is_started`` to ``is_ready``, when a mask thread does: then
    nothing but ``is_ready`` may be asked of it.
    """

    def __init__(self, inner: Matcher) -> None:
        self.inner = inner
        self.is_started = False
        self.is_ready = False
        self.mask: NDArray[np.int32] | None = None
        self.failure = ""

    def accept(self, token_id: int) -> bool:
        self.is_started = self.is_ready = False
        self.mask = None
        return self.inner.accept(token_id)

    @property
    def error(self) -> str:
        return self.failure or self.inner.error

    @property
    def is_complete(self) -> bool:
        return self.inner.is_complete

    def copy(self) -> _MaskedMatcher:
        return _MaskedMatcher(self.inner.copy())

    def mask_data(self) -> memoryview:
        assert self.mask is not None, "the row is not ready"
        return self.mask.data


def _masked(matcher: Matcher) -> _MaskedMatcher:
    if not isinstance(matcher, _MaskedMatcher):
        raise TypeError(f"not a matcher of prepare: {type(matcher).__name__}")
    return matcher


def _hand_out(compiled: Future[Matcher], matcher: Future[Matcher]) -> None:
    """Give a request that waits for it a copy of what has been compiled."""
    if compiled.cancelled():
        matcher.cancel()
        return
    error = compiled.exception()
    if error is None:
        matcher.set_result(_MaskedMatcher(compiled.result().copy()))
    else:
        matcher.set_exception(error)
