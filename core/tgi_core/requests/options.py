"""What a validated request asks for, and how its prompt is made to fit."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from tgi_core.errors import ContextLengthError, ValidationError
from tgi_core.sampling.defaults import SamplingDefaults
from tgi_core.sampling.grammar import Grammar
from tgi_core.sampling.params import SamplingParams

TGI_ADMISSION_TOKENS = 1024
"""TGI checks an input for room for at most this many new tokens, so clients send huge limits to mean "to the end"."""


class EncoderLimits(msgspec.Struct, frozen=True):
    """What is different where an encoder reads the prompt.

    Attributes:
        decoder_prompt: the tokens that every output follows.
        max_step_tokens: the encoder reads a prompt in one step of so many.
    """

    decoder_prompt: tuple[int, ...]
    max_step_tokens: int


class RequestLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What the server allows a request, from the engine and the configuration.

    Attributes:
        max_input_tokens, max_total_tokens: of one prompt, and of it and its output; or of what the decoder starts with
            and its output, where an encoder reads the prompt.
        vocab_size: width of the logits; token ids are below it.
        max_best_of, max_stop_sequences, max_top_n_tokens: TGI's limits.
        max_choices: generations that one request to OpenAI's routes may start.
        watermark_gamma, watermark_delta: what a request that asks for a watermark gets.
        grammar_obstacle: why outputs cannot be constrained; "" where they can.
        extra_parameters: names of the parameters of plugins' sampling rules.
        encoder: None for a model whose decoder reads the prompt.
        defaults: what holds for parameters that a request does not name.
        unsupported: what the device cannot do for a request, and why; see ``ModelShard.unsupported_parameters``.
    """

    max_input_tokens: int
    max_total_tokens: int
    vocab_size: int
    max_best_of: int = 2
    max_stop_sequences: int = 4
    max_top_n_tokens: int = 5
    max_choices: int = 128
    watermark_gamma: float = 0.5
    watermark_delta: float = 2.0
    grammar_obstacle: str = ""
    extra_parameters: frozenset[str] = frozenset()
    encoder: EncoderLimits | None = None
    defaults: SamplingDefaults = SamplingDefaults()
    unsupported: Mapping[str, str] = {}


class GenerationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A validated request without its text.

    Attributes:
        sampling: what the engine does with the logits.
        max_new_tokens: None is the rest of the context; 0, which only scores the prompt, goes with an echo only.
        stop: distinct stop strings, none empty.
        include_stop: the text ends behind the stop string, and nothing is held back; otherwise it ends in front of it.
        length_first: a stop string that the last allowed token completes counts as the end by length, as in TGI.
        truncate: keep at most this many tokens of the prompt.
        ignore_eos: EOS is a token like any other.
        stop_token_ids: tokens that end the text besides EOS.
        bad_words: texts that the output must not have; ``sampling`` gets their tokens later.
        skip_special_tokens: special tokens are no part of the text.
        grammar: what the output must match.
        prompt_logprobs: report the log-probabilities of the prompt's tokens.
        best_of: how many generations to start.
        n: how many of them, the most likely ones, to return.
        own_seeds: each generation draws a seed of its own, as in TGI; otherwise one seed and the index of the choice
            decide.
        begins_text: the output is a text of its own, and does not continue the prompt.
        has_seed: the device draws by the seed; otherwise nothing replays the request.
        has_logprobs: the device tells log-probabilities of chosen tokens; otherwise they are all nan.
    """

    sampling: SamplingParams
    max_new_tokens: int | None = None
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    length_first: bool = False
    truncate: int | None = None
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    skip_special_tokens: bool = True
    grammar: Grammar | None = None
    prompt_logprobs: bool = False
    best_of: int = 1
    n: int = 1
    own_seeds: bool = False
    begins_text: bool = False
    has_seed: bool = True
    has_logprobs: bool = True

    @property
    def seed(self) -> int | None:
        """The seed that replays the request; None when it does not sample, or nothing does."""
        return self.sampling.seed if self.sampling.do_sample and self.has_seed else None

    def choices(self) -> list[GenerationOptions]:
        """The options of each generation to start."""
        if self.best_of == 1:
            return [self]
        samplings = [
            replace(self.sampling, seed=random_seed()) if self.own_seeds else replace(self.sampling, choice=choice)
            for choice in range(self.best_of)
        ]
        return [replace(self, sampling=sampling) for sampling in samplings]


def random_seed() -> int:
    """A seed for a request that brings none: 64 random bits."""
    return secrets.randbits(64)


def fit_prompt(
    token_ids: Sequence[int],
    options: GenerationOptions,
    limits: RequestLimits,
    prefix_ids: Sequence[int] = (),
    field: str = "inputs",
) -> tuple[Sequence[int], int]:
    """The prompt's tokens after truncation, and how many tokens may follow them: at least 1, which a request that only
    scores its prompt does not show. As in TGI, more tokens than fit are cut to the rest of the context, but there must
    be room for ``TGI_ADMISSION_TOKENS`` of them.

    ``prefix_ids``: special tokens that the tokenizer puts in front of a text (``TextTokenizer.prefix_ids``);
    truncation keeps them and cuts behind them. ``field``: where the client sent the prompt.

    Raises:
        ValidationError: the prompt is empty, or it and the new tokens exceed a limit.
    """
    prompt = _truncate(token_ids, options.truncate, prefix_ids)
    num_tokens = len(prompt)
    if num_tokens == 0:
        raise ValidationError("`inputs` must have at least one token. Given: 0", param=field)
    wanted = options.max_new_tokens
    if limits.encoder is not None:
        return prompt, _fit_encoder(num_tokens, wanted, limits, limits.encoder, field)
    room = limits.max_total_tokens - num_tokens
    if wanted is not None:
        needed = min(wanted, TGI_ADMISSION_TOKENS)
        if needed > room:
            raise ContextLengthError(
                f"`inputs` tokens + `max_new_tokens` must be <= {limits.max_total_tokens}. "
                f"Given: {num_tokens} `inputs` tokens and {wanted} `max_new_tokens`. Shorten `{field}`, ask for fewer "
                f"tokens, or start the server with --max-total-tokens {num_tokens + needed} or more",
                param=field,
            )
    max_input_tokens = min(limits.max_input_tokens, limits.max_total_tokens - 1)
    if num_tokens > max_input_tokens:
        flags = [
            f"{flag} {least}"
            for flag, least, limit in (
                ("--max-input-tokens", num_tokens, limits.max_input_tokens),
                ("--max-total-tokens", num_tokens + 1, limits.max_total_tokens),
            )
            if least > limit
        ]
        raise ContextLengthError(
            f"`inputs` must have less than {max_input_tokens} tokens. Given: {num_tokens}. "
            f"Shorten `{field}`, or start the server with {' and '.join(flags)} or more",
            param=field,
        )
    return prompt, room if wanted is None else min(max(wanted, 1), room)


def _fit_encoder(num_tokens: int, wanted: int | None, limits: RequestLimits, encoder: EncoderLimits, field: str) -> int:
    """How many tokens may be generated where an encoder reads the prompt: it takes no room from them."""
    room = limits.max_total_tokens - len(encoder.decoder_prompt)
    if num_tokens > limits.max_input_tokens:
        flags = f"--max-input-tokens {num_tokens}"
        if num_tokens > encoder.max_step_tokens:
            flags += f" and --max-batch-prefill-tokens {num_tokens}, as an encoder reads its input in one step,"
        raise ContextLengthError(
            f"`inputs` must have at most {limits.max_input_tokens} tokens. Given: {num_tokens}. "
            f"Shorten `{field}`, or start the server with {flags} or more",
            param=field,
        )
    if wanted is None:
        return room
    if min(wanted, TGI_ADMISSION_TOKENS) > room:
        raise ContextLengthError(
            f"`max_new_tokens` must be <= {room}. Given: {wanted}. Ask for fewer tokens, or start the server with "
            f"--max-total-tokens {limits.max_total_tokens - room + min(wanted, TGI_ADMISSION_TOKENS)} or more",
            param=field,
        )
    return min(max(wanted, 1), room)


def _truncate(token_ids: Sequence[int], limit: int | None, prefix_ids: Sequence[int]) -> Sequence[int]:
    if limit is None or len(token_ids) <= limit:
        return token_ids
    prefix = list(prefix_ids) if list(token_ids[: len(prefix_ids)]) == list(prefix_ids) else []
    kept = max(0, limit - len(prefix))
    return [*prefix[:limit], *token_ids[len(token_ids) - kept :]]
