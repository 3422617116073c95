"""Log-probabilities in OpenAI's two forms."""

from __future__ import annotations

from collections.abc import Sequence

from tgi_api.numbers import float32_or_none
from tgi_api.schemas.chat import TokenLogprob
from tgi_api.schemas.completions import CompletionLogprobs


def chat_logprob(text: str, logprob: float) -> TokenLogprob:
    """The entry of one generated token."""
    return TokenLogprob(text, float32_or_none(logprob), list(text.encode()), [])


def completion_logprobs(
    texts: Sequence[str], logprobs: Sequence[float], text_offsets: Sequence[int]
) -> CompletionLogprobs:
    """The columns of some generated tokens; ``text_offsets`` count characters of the choice's text."""
    return CompletionLogprobs(list(texts), [float32_or_none(value) for value in logprobs], None, list(text_offsets))
