"""What a validated request asks for, and how its prompt is made to fit."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tgi_core.errors import ValidationError
from tgi_core.sampling.params import SamplingParams

TGI_ADMISSION_TOKENS = 1024
"""TGI checks an input for room for at most this many new tokens, so clients send huge limits to mean "to the end"."""


class RequestLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one request, from the engine (tokens) and the configuration (counts)."""

    max_input_tokens: int
    max_total_tokens: int
    max_best_of: int = 2
    max_stop_sequences: int = 4
    max_top_n_tokens: int = 5


class GenerationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A validated request without its text.

    Attributes:
        sampling: what the engine does with the logits.
        max_new_tokens: at least 1; None is the rest of the context.
        clamp_new_tokens: an explicit ``max_new_tokens`` above ``TGI_ADMISSION_TOKENS`` is cut to the rest of the
            context instead of refused.
        stop: distinct stop strings, none empty.
        truncate: keep at most this many tokens of the prompt.
        ignore_eos: EOS is a token like any other.
    """

    sampling: SamplingParams
    max_new_tokens: int | None = None
    clamp_new_tokens: bool = False
    stop: tuple[str, ...] = ()
    truncate: int | None = None
    ignore_eos: bool = False

    @property
    def seed(self) -> int | None:
        """The seed that replays the request; None when it does not sample."""
        return self.sampling.seed if self.sampling.do_sample else None


def fit_prompt(
    token_ids: Sequence[int], options: GenerationOptions, limits: RequestLimits, prefix_ids: Sequence[int] = ()
) -> tuple[Sequence[int], int]:
    """The prompt's tokens after truncation, and how many tokens may follow them (at least 1).

    ``prefix_ids``: special tokens that the tokenizer puts in front of a text (``TextTokenizer.prefix_ids``);
    truncation keeps them and cuts behind them.

    Raises:
        ValidationError: the prompt is empty, or it and the new tokens exceed a limit.
    """
    prompt = _truncate(token_ids, options.truncate, prefix_ids)
    num_tokens = len(prompt)
    if num_tokens == 0:
        raise ValidationError("`inputs` must have at least one token. Given: 0")
    room = limits.max_total_tokens - num_tokens
    wanted = options.max_new_tokens
    if wanted is not None:
        needed = min(wanted, TGI_ADMISSION_TOKENS) if options.clamp_new_tokens else wanted
        if needed > room:
            raise ValidationError(
                f"`inputs` tokens + `max_new_tokens` must be <= {limits.max_total_tokens}. "
                f"Given: {num_tokens} `inputs` tokens and {wanted} `max_new_tokens`"
            )
    max_input_tokens = min(limits.max_input_tokens, limits.max_total_tokens - 1)
    if num_tokens > max_input_tokens:
        raise ValidationError(f"`inputs` must have less than {max_input_tokens} tokens. Given: {num_tokens}")
    return prompt, room if wanted is None else min(wanted, room)


def _truncate(token_ids: Sequence[int], limit: int | None, prefix_ids: Sequence[int]) -> Sequence[int]:
    if limit is None or len(token_ids) <= limit:
        return token_ids
    prefix = list(prefix_ids) if list(token_ids[: len(prefix_ids)]) == list(prefix_ids) else []
    kept = max(0, limit - len(prefix))
    return [*prefix[:limit], *token_ids[len(token_ids) - kept :]]
