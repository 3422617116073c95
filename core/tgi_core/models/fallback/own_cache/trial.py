"""What a model's own cache can be trusted with, found with its weights and a few tokens before it serves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tgi_core.models.fallback.agreement import difference, most_difference
from tgi_core.models.fallback.own_cache.forward import WAYS, Forward, NoCacheError, Padding
from tgi_core.models.fallback.own_cache.rows import can_merge, merge_caches, size_bytes, split_cache
from tgi_core.models.fallback.refusal import refuse

_PROMPT, _TOKENS = 9, 13
_OTHER = slice(2, 7)
"""Where a second, shorter row's prompt lies in the tokens of the trial."""


class Abilities(NamedTuple):
    """What was proved.

    Attributes:
        caches: tokens are computed on top of the cache of those before; otherwise each one computes its whole sequence.
        chunks: a prompt may be computed in pieces.
        batches: rows of different lengths decode in one padded batch.
        bytes_per_token, bytes_per_slot: memory of a cache.
        notes: what is missing, and why.
    """

    caches: bool
    chunks: bool
    batches: bool
    bytes_per_token: int
    bytes_per_slot: int
    notes: tuple[str, ...]


class _DiffersError(Exception):
    """Logits that should agree do not."""


def try_out(forward: Forward, ids_T: Tensor, *, alone: str = "") -> Abilities:
    """Compare caches, chunks and batches with whole sequences, and measure the cache. Sets ``forward.way``.

    Args:
        forward: of the model.
        ids_T: int64, tokens on the model's device, as many as ``trial_tokens`` gives.
        alone: why chunks and batches must not be used, which so few tokens would not show; "" for no reason.

    Raises:
        StartupError: the model does not compute, or it is not causal: no cache could be right.
    """
    try:
        whole_TV = forward.whole(ids_T[None])[0]
        part_TV = forward.whole(ids_T[None, :_PROMPT])[0]
    except Exception as error:  # whatever the architecture's code trips over
        raise refuse(f"its forward fails: {_first_line(error)}") from error
    change = difference(part_TV, whole_TV[:_PROMPT])
    if not change <= most_difference(whole_TV.dtype):
        raise refuse(f"logits change by {change:.1%} with the tokens behind them: its attention looks ahead")
    trial = _Trial(forward, ids_T, whole_TV)
    obstacle = ""
    for way in WAYS:
        forward.way = way
        # Prompts shorter than what a layer looks back have been wrong in some versions.
        obstacle = _obstacle(trial.go_through, (_PROMPT,)) or _obstacle(trial.go_through, (1,))
        if not obstacle:
            break
    else:
        note = f"every token computes its whole sequence, since its cache cannot be used: {obstacle}"
        return Abilities(False, False, False, 0, 0, (note,))
    notes = []
    no_chunks = alone or _obstacle(trial.go_through, (_PROMPT // 2, _PROMPT))
    if no_chunks:
        notes.append(f"prompts are computed in one piece, since further ones cannot follow: {no_chunks}")
    no_batches = alone or _obstacle(trial.batch)
    if no_batches:
        notes.append(f"requests are computed one after the other, since a batch is not possible: {no_batches}")
    per_token, per_slot = trial.measure()
    return Abilities(True, not no_chunks, not no_batches, per_token, per_slot, tuple(notes))


def check_encoder(forward: Forward, ids_T: Tensor) -> None:
    """Prove that encoder and decoder give apart what the model gives as a whole.

    Raises:
        StartupError: they do not.
    """
    try:
        together_TV = forward.model(input_ids=ids_T[None], decoder_input_ids=ids_T[None]).logits[0]
        apart_TV = forward.reading(ids_T).whole(ids_T[None])[0]
    except Exception as error:  # whatever the architecture's code trips over
        raise refuse(f"its forward fails: {_first_line(error)}") from error
    change = difference(apart_TV, together_TV)
    if not change <= most_difference(together_TV.dtype):
        raise refuse(f"logits change by {change:.1%} when its encoder runs apart from its decoder")


def measure_input(forward: Forward, ids_T: Tensor, *, caches: bool) -> int:
    """Bytes that each token of an encoder's input takes in what is kept of a slot."""
    sizes = []
    for length in (4, _TOKENS):
        reading = forward.reading(ids_T[:length])
        kept = reading.go_on(ids_T[None, :1], None, 0)[1] if caches else None
        sizes.append(size_bytes(kept) + reading.encoded_bytes)
    return max(0, -(-(sizes[1] - sizes[0]) // (_TOKENS - 4)))


def trial_tokens(vocab_size: int, avoided: Sequence[int], device: torch.device) -> Tensor:
    """Different token ids without those in ``avoided``, which models may treat as padding."""
    usual = [token for token in range(3, vocab_size) if token not in avoided]
    stride = max(1, len(usual) // _TOKENS)
    return torch.tensor((usual[::stride] * _TOKENS)[:_TOKENS], device=device)


def _obstacle(work: Callable[..., None], *arguments: Any) -> str:
    """Why ``work`` fails; "" if it does not."""
    try:
        work(*arguments)
    except NoCacheError:
        return "it gives none back"
    except _DiffersError as error:
        return str(error)
    except Exception as error:  # whatever the architecture's code trips over
        return _first_line(error)
    return ""


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".")


class _Trial:
    """The computations that are compared."""

    def __init__(self, forward: Forward, ids_T: Tensor, whole_TV: Tensor) -> None:
        self._forward = forward
        self._ids_T = ids_T
        self._whole_TV = whole_TV

    def go_through(self, chunk_ends: Sequence[int]) -> None:
        """Chunks of a prompt, then token by token."""
        start, cache = 0, None
        for end in (*chunk_ends, *range(chunk_ends[-1] + 1, _TOKENS + 1)):
            logits_1TV, cache = self._forward.go_on(self._ids_T[None, start:end], cache, start)
            self._compare(logits_1TV[0], self._whole_TV[start:end])
            start = end

    def batch(self) -> None:
        """Two rows decode together, then each alone again."""
        other_T = self._ids_T[_OTHER]
        other_whole_TV = self._forward.whole(self._ids_T[None, _OTHER.start :])[0]
        caches = [self._forward.go_on(ids_T[None], None, 0)[1] for ids_T in (self._ids_T[:_PROMPT], other_T)]
        if not all(map(can_merge, caches)):
            raise _DiffersError(f"its cache is a `{type(caches[0]).__name__}` of its own")
        lengths = [_PROMPT, len(other_T)]
        cache = merge_caches(caches, lengths)
        device = self._ids_T.device
        for _ in range(2):
            ids_B1 = torch.stack([self._ids_T[lengths[0]], self._ids_T[_OTHER.start + lengths[1]]])[:, None]
            padding = pad(lengths, device)
            logits_B1V, cache = self._forward.go_on(ids_B1, cache, max(lengths), padding)
            self._compare(logits_B1V[0], self._whole_TV[lengths[0] :][:1])
            self._compare(logits_B1V[1], other_whole_TV[lengths[1] :][:1])
            lengths = [length + 1 for length in lengths]
        alone = split_cache(cache, lengths)
        ends = (self._ids_T[lengths[0]], self._ids_T[_OTHER.start + lengths[1]])
        for row, (whole_TV, token) in enumerate(zip((self._whole_TV, other_whole_TV), ends, strict=True)):
            logits_11V, _ = self._forward.go_on(token[None, None], alone[row], lengths[row])
            self._compare(logits_11V[0], whole_TV[lengths[row] :][:1])

    def measure(self) -> tuple[int, int]:
        """Bytes of a cache for each token, and for each slot whatever its length."""
        short, long = (
            size_bytes(self._forward.go_on(self._ids_T[None, :length], None, 0)[1]) for length in (4, _TOKENS)
        )
        per_token = max(0, -(-(long - short) // (_TOKENS - 4)))
        return per_token, max(0, short - 4 * per_token)

    @staticmethod
    def _compare(found_TV: Tensor, expected_TV: Tensor) -> None:
        error = difference(found_TV, expected_TV)
        if not error <= most_difference(expected_TV.dtype):
            raise _DiffersError(f"its logits were off by {error:.1%}")


def pad(lengths: Sequence[int], device: torch.device) -> Padding:
    """For rows of these lengths, each of which gets one more token."""
    lengths_B1 = torch.tensor(lengths, device=device)[:, None]
    columns_L = torch.arange(max(lengths) + 1, device=device)
    return Padding((columns_L >= max(lengths) - lengths_B1).long(), lengths_B1)
