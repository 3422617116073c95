"""Checks of requests, in TGI's order: the first one that fails is reported."""

from __future__ import annotations

from msgspec.structs import replace

from tgi_core.errors import ValidationError
from tgi_core.requests import checks
from tgi_core.requests.defaults import fill_generate, fill_openai
from tgi_core.requests.grammar import (
    only_grammar,
    read_grammar,
    read_guided_choice,
    read_guided_grammar,
    read_guided_json,
    read_guided_regex,
    read_structured_outputs,
)
from tgi_core.requests.options import GenerationOptions, RequestLimits, random_seed
from tgi_core.requests.parameters import GenerateParameters, OpenAIParameters
from tgi_core.requests.refusals import refuse_unsupported
from tgi_core.requests.unsupported import check_generate, check_openai
from tgi_core.sampling.grammar import Grammar
from tgi_core.sampling.params import SamplingParams

MIN_TEMPERATURE = 1e-5
"""Below it every distribution is a point, and dividing logits by much less overflows float32."""

MAX_OPENAI_LOGPROBS = 20
"""Most alternatives at a position on OpenAI's routes: what OpenAI allows in a chat."""


def validate_generate(
    inputs: str, parameters: GenerateParameters | None, limits: RequestLimits, *, stream: bool
) -> GenerationOptions:
    """Options of a request to TGI's generate routes.

    A request without ``parameters`` samples; one with them only when they say so (``do_sample``, or a temperature
    other than 1, ``top_k``, ``top_p``, ``typical_p`` or ``min_p`` that cut something off).

    Raises:
        ValidationError: a value is out of its range, or asks for something this version cannot do.
    """
    given = fill_generate(parameters, limits.defaults)
    best_of = _tgi_best_of(given, limits, stream=stream)
    if stream and given.decoder_input_details:
        raise ValidationError("`decoder_input_details` must be false when streaming")
    temperature = checks.positive("temperature", given.temperature)
    repetition_penalty = checks.positive("repetition_penalty", given.repetition_penalty)
    frequency_penalty = checks.between("frequency_penalty", given.frequency_penalty, -2.0, 2.0)
    top_p = checks.probability("top_p", given.top_p)
    typical_p = checks.probability("typical_p", given.typical_p)
    top_k = checks.top_k(given.top_k)
    max_new_tokens = checks.strictly_positive("max_new_tokens", given.max_new_tokens)
    stop = checks.stop(given.stop, limits)
    if given.seed is not None and best_of > 1:
        raise ValidationError("`seed` must be absent when `best_of` > 1, each sequence draws its own")
    top_n = checks.at_most("top_n_tokens", given.top_n_tokens, limits.max_top_n_tokens, "--max-top-n-tokens")
    require_inputs(inputs)
    if given.truncate is not None and not 0 < given.truncate <= limits.max_input_tokens:
        raise ValidationError(
            f"`truncate` must be strictly positive and at most {limits.max_input_tokens}. Given: {given.truncate}"
            + checks.raise_limit("--max-input-tokens", given.truncate)
        )
    seed = checks.seed(given.seed)
    min_p = checks.between("min_p", given.min_p, 0.0, 1.0)
    logit_bias = checks.logit_bias(given.logit_bias, limits)
    logits_rules = checks.logits_rules(given.logits_rules, limits)
    min_name = "min_tokens" if given.min_new_tokens is None else "min_new_tokens"
    min_tokens = checks.min_tokens(min_name, getattr(given, min_name), limits, max_new_tokens)
    if given.adapter_id:
        raise ValidationError("`adapter_id` is not supported yet")
    grammar = _allowed(read_grammar("grammar", given.grammar), limits)
    options = GenerationOptions(
        sampling=_sampling(
            SamplingParams(
                do_sample=bool(given.do_sample)
                or temperature != 1.0
                or top_k > 0
                or top_p < 1.0
                or typical_p < 1.0
                or min_p > 0.0,
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                typical_p=typical_p,
                min_p=min_p,
                repetition_penalty=repetition_penalty,
                relative_frequency_penalty=frequency_penalty,
                logit_bias=logit_bias,
                min_tokens=min_tokens,
                watermark_gamma=limits.watermark_gamma,
                watermark_delta=limits.watermark_delta if given.watermark else 0.0,
                top_n=top_n,
                extra=logits_rules,
            ),
            seed,
        ),
        max_new_tokens=max_new_tokens,
        stop=stop,
        include_stop=True,
        length_first=True,
        truncate=given.truncate,
        ignore_eos=bool(given.ignore_eos),
        grammar=grammar,
        prompt_logprobs=bool(given.decoder_input_details),
        best_of=best_of,
        own_seeds=True,
        begins_text=limits.encoder is not None,
        has_seed="seed" not in limits.unsupported,
        has_logprobs="logprobs" not in limits.unsupported,
    )
    check_generate(given, options, limits.unsupported)
    return options


def validate_openai(given: OpenAIParameters, limits: RequestLimits) -> GenerationOptions:
    """Options of a chat or completion request; it samples unless its temperature is exactly 0.

    Raises:
        ValidationError: a value is out of its range, or asks for something this version cannot do.
    """
    given = fill_openai(given, limits.defaults)
    greedy = given.temperature == 0.0
    temperature = 1.0 if greedy else checks.positive("temperature", given.temperature)
    repetition_penalty = checks.positive("repetition_penalty", given.repetition_penalty)
    frequency_penalty = checks.between("frequency_penalty", given.frequency_penalty, -2.0, 2.0)
    presence_penalty = checks.between("presence_penalty", given.presence_penalty, -2.0, 2.0)
    top_p = checks.probability("top_p", given.top_p)
    typical_p = checks.probability("typical_p", given.typical_p)
    min_p = checks.between("min_p", given.min_p, 0.0, 1.0)
    top_k = checks.top_k(given.top_k)
    max_new_tokens = _max_tokens(given)
    min_tokens = checks.min_tokens("min_tokens", given.min_tokens, limits, max_new_tokens)
    stop = checks.stop(given.stop, limits)
    n, best_of = _choices(given, limits)
    wants_logprobs, top_n = _logprobs(given)
    if limits.encoder is not None and given.echo and wants_logprobs:
        raise ValidationError(
            "`echo` with `logprobs` asks how likely the prompt is, which a model with an encoder does not tell"
        )
    logit_bias = checks.logit_bias(given.logit_bias, limits)
    logits_rules = checks.logits_rules(given.logits_rules, limits)
    stop_token_ids = checks.stop_token_ids(given.stop_token_ids, limits)
    allowed_token_ids = checks.allowed_token_ids(given.allowed_token_ids, limits)
    bad_words = checks.bad_words(given.bad_words)
    truncate = checks.truncate_prompt_tokens(given.truncate_prompt_tokens, limits)
    checks.priority(given.priority)
    refuse_unsupported(given)
    seed = checks.seed(given.seed)
    grammar = _allowed(_openai_grammar(given), limits)
    if grammar is not None and allowed_token_ids:
        raise ValidationError("`allowed_token_ids` cannot be combined with a constraint on the output")
    options = GenerationOptions(
        sampling=_sampling(
            SamplingParams(
                do_sample=not greedy,
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                typical_p=typical_p,
                min_p=min_p,
                repetition_penalty=repetition_penalty,
                frequency_penalty=frequency_penalty,
                presence_penalty=presence_penalty,
                logit_bias=logit_bias,
                min_tokens=min_tokens,
                top_n=top_n,
                raw_logprobs=wants_logprobs,
                extra=logits_rules,
                allowed_token_ids=allowed_token_ids,
            ),
            seed,
        ),
        max_new_tokens=max_new_tokens,
        stop=stop,
        include_stop=bool(given.include_stop_str_in_output),
        truncate=truncate,
        ignore_eos=bool(given.ignore_eos),
        stop_token_ids=stop_token_ids,
        bad_words=bad_words,
        skip_special_tokens=given.skip_special_tokens is not False,
        grammar=grammar,
        prompt_logprobs=bool(given.echo) and wants_logprobs,
        best_of=best_of,
        n=n,
        begins_text=limits.encoder is not None,
        has_seed="seed" not in limits.unsupported,
        has_logprobs="logprobs" not in limits.unsupported,
    )
    check_openai(given, options, limits.unsupported)
    return options


def require_inputs(inputs: str) -> None:
    """Refuse an empty prompt.

    Raises:
        ValidationError: it is empty.
    """
    if not inputs:
        raise ValidationError("`inputs` must not be empty")


def _tgi_best_of(given: GenerateParameters, limits: RequestLimits, *, stream: bool) -> int:
    best_of = given.best_of or 1  # TGI takes 0 as 1
    if best_of < 1 or best_of > limits.max_best_of:
        raise ValidationError(
            f"`best_of` must be > 0 and <= {limits.max_best_of}. Given: {best_of}"
            + checks.raise_limit("--max-best-of", best_of)
        )
    if best_of == 1:
        return 1
    if stream:
        raise ValidationError(f"`best_of` must be 1 when streaming. Given: {best_of}")
    # Looser than what makes a request sample: here TGI looks at what was sent, not at whether it has an effect.
    warpers = (given.temperature, given.top_k, given.top_p, given.typical_p)
    if not given.do_sample and all(value is None for value in warpers):
        raise ValidationError(f"`best_of` > 1 needs sampling: set `do_sample`. Given: {best_of}")
    return best_of


def _max_tokens(given: OpenAIParameters) -> int | None:
    """Most tokens to generate; 0 only scores an echoed prompt."""
    wanted = given.max_tokens if given.max_completion_tokens is None else given.max_completion_tokens
    if wanted == 0 and given.echo:
        return 0
    checks.strictly_positive("max_tokens", given.max_tokens)
    checks.strictly_positive("max_completion_tokens", given.max_completion_tokens)
    return wanted


def _choices(given: OpenAIParameters, limits: RequestLimits) -> tuple[int, int]:
    """How many choices to return, and out of how many."""
    n = checks.strictly_positive("n", given.n) or 1
    best_of = checks.strictly_positive("best_of", given.best_of) or n
    for name, value in (("n", n), ("best_of", best_of)):
        if value > limits.max_choices:
            raise ValidationError(f"`{name}` must be <= {limits.max_choices}. Given: {value}")
    if best_of < n:
        raise ValidationError(f"`best_of` must be at least `n`. Given: {best_of} and `n` {n}")
    if best_of > n and given.stream:
        raise ValidationError(f"`best_of` must not exceed `n` when streaming. Given: {best_of} and `n` {n}")
    return n, best_of


def _logprobs(given: OpenAIParameters) -> tuple[bool, int]:
    """Whether log-probabilities are wanted, and for how many alternatives."""
    wanted = given.logprobs
    top_n = checks.at_most("top_logprobs", given.top_logprobs, MAX_OPENAI_LOGPROBS)
    if wanted is not True and top_n > 0:
        raise ValidationError("`top_logprobs` needs `logprobs` to be true")
    if wanted is None or isinstance(wanted, bool):
        return bool(wanted), top_n
    return True, checks.at_most("logprobs", wanted, MAX_OPENAI_LOGPROBS)


def _openai_grammar(given: OpenAIParameters) -> Grammar | None:
    return only_grammar(
        {
            "response_format": read_grammar("response_format", given.response_format),
            "structured_outputs": read_structured_outputs("structured_outputs", given.structured_outputs),
            "guided_json": read_guided_json("guided_json", given.guided_json),
            "guided_regex": read_guided_regex("guided_regex", given.guided_regex),
            "guided_choice": read_guided_choice("guided_choice", given.guided_choice),
            "guided_grammar": read_guided_grammar("guided_grammar", given.guided_grammar),
        }
    )


def _allowed(grammar: Grammar | None, limits: RequestLimits) -> Grammar | None:
    if grammar is not None and limits.grammar_obstacle:
        raise ValidationError(f"this server constrains no output: {limits.grammar_obstacle}")
    return grammar


def _sampling(sampling: SamplingParams, seed: int | None) -> SamplingParams:
    """Complete a request's parameters; one that does not sample has no use for seeds and cuts."""
    if not sampling.do_sample:
        return replace(sampling, temperature=1.0, top_k=0, top_p=1.0, typical_p=1.0, min_p=0.0)
    temperature = max(sampling.temperature, MIN_TEMPERATURE)
    return replace(sampling, temperature=temperature, seed=random_seed() if seed is None else seed)
