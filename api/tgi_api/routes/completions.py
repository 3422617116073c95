"""``/v1/completions``."""

from __future__ import annotations

from collections.abc import Sequence

from litestar import post
from litestar.response.base import ASGIResponse

from tgi_api.body import read_body
from tgi_api.call import Call
from tgi_api.collect import Collected, collect, returned_choices
from tgi_api.errors import AnyRequest, BatchSizeError, SuffixError
from tgi_api.headers import reply_headers, stream_headers
from tgi_api.logprobs import join, output_logprobs, prompt_logprobs
from tgi_api.openapi import GENERATION_ERRORS, OPERATION, Operation
from tgi_api.reply import json_reply, make_head, reply_usage
from tgi_api.schemas.completions import (
    Completion,
    CompletionChoice,
    CompletionChunk,
    CompletionLogprobs,
    CompletionRequest,
)
from tgi_api.sse import EventBuffer
from tgi_api.state import AppState, server_of
from tgi_api.streams.completions import CompletionStream
from tgi_api.streams.openai import OpenAIStream
from tgi_core.errors import ValidationError
from tgi_core.requests import validate_openai


@post(
    "/v1/completions",
    status_code=200,
    opt={
        OPERATION: Operation(
            "Continue one or several texts, plain or streamed",
            "OpenAI",
            CompletionRequest,
            Completion,
            CompletionChunk,
            errors=GENERATION_ERRORS,
        )
    },
)
async def completions(request: AnyRequest) -> ASGIResponse:
    """A completion with one or several choices for each prompt, or a stream of its chunks."""
    server = server_of(request)
    with Call(server, request) as call:
        body = await read_body(request, CompletionRequest)
        return await answer_completion(request, call, server, body)


async def answer_completion(request: AnyRequest, call: Call, server: AppState, body: CompletionRequest) -> ASGIResponse:
    """The reply to a completion request, or its stream."""
    sources = _sources(body, server.config.api.max_client_batch_size)
    options = validate_openai(body, server.limits)
    call.admit(len(sources) * options.best_of, body.request_id)
    prompts = await call.prepare(
        sources, options, add_special_tokens=body.add_special_tokens is not False, field="prompt"
    )
    head = make_head(server, call.request_id, kind="text_completion", id_prefix="cmpl", model=body.model)
    logprobs, echo = body.logprobs is not None, bool(body.echo)
    if body.stream:
        stream = OpenAIStream(EventBuffer(), head, body)
        outputs: list[CompletionStream] = []
        for prompt in prompts:
            choices = [
                CompletionStream(choice, server.tokenizer, stream, len(outputs) + index, logprobs=logprobs, echo=echo)
                for index, choice in enumerate(prompt.choices())
            ]
            stream.add(choices)
            outputs += choices
        for output in outputs:
            call.start(output)
        return call.stream(stream.buffer, stream_headers(server, prompts))
    groups = await collect(request, call, server.tokenizer, prompts)
    returned = [output for group in groups for output in returned_choices(group)]
    reply = Completion(
        object="text_completion",
        id=head.id,
        created=head.created,
        model=head.model,
        system_fingerprint=head.system_fingerprint,
        choices=[_choice(index, output, logprobs=logprobs, echo=echo) for index, output in enumerate(returned)],
        usage=reply_usage(groups),
    )
    return json_reply(reply, reply_headers(server, call, prompts, [output for group in groups for output in group]))


def _sources(body: CompletionRequest, max_prompts: int) -> Sequence[str | Sequence[int]]:
    """The prompts: texts, or token ids."""
    if body.suffix is not None:
        raise SuffixError("Suffix is not supported and can be removed from the request", param="suffix")
    if body.tools:
        raise ValidationError("`tools` works on /v1/chat/completions only")
    sources = _split(body.prompt)
    if not sources:
        raise ValidationError("`prompt` must not be empty")
    if len(sources) > max_prompts:
        raise BatchSizeError(
            f"Number of prompts exceeds the maximum allowed batch size of {max_prompts} (--max-client-batch-size): "
            f"{len(sources)}",
            param="prompt",
        )
    if not all(sources):
        raise ValidationError("`prompt` must not hold an empty prompt")
    return sources


def _split(prompt: str | list[str | int | list[int]]) -> Sequence[str | Sequence[int]]:
    if isinstance(prompt, str):
        return [prompt]
    kinds = {type(item) for item in prompt}
    if len(kinds) > 1:
        raise ValidationError("`prompt` must be texts only, token ids only, or lists of token ids only")
    if kinds == {int}:
        return [[item for item in prompt if isinstance(item, int)]]
    return [item for item in prompt if not isinstance(item, int)]


def _choice(index: int, output: Collected, *, logprobs: bool, echo: bool) -> CompletionChoice:
    prompt = output.prompt
    prefix = prompt.text if echo else ""
    columns: CompletionLogprobs | None = None
    if logprobs:
        columns = output_logprobs(output, len(prefix))
        if echo:
            columns = join(prompt_logprobs(prompt, output.prompt_logprobs, output.tokenizer), columns)
    return CompletionChoice(index, prefix + output.text, columns, output.finish_reason.openai)


HANDLERS = (completions,)
