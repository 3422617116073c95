"""``/v1/completions``."""

from __future__ import annotations

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
from tgi_api.state import server_of
from tgi_api.streams.completions import CompletionStream
from tgi_api.streams.openai import OpenAIStream
from tgi_core.errors import ValidationError
from tgi_core.requests import require_inputs, validate_openai


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
        texts = _prompts(body, server.config.api.max_client_batch_size)
        options = validate_openai(body, server.limits)
        call.admit(len(texts) * options.best_of)
        prompts = await call.prepare(texts, options, add_special_tokens=True)
        head = make_head(server, kind="text_completion", id_prefix="cmpl", model=body.model)
        logprobs, echo = body.logprobs is not None, bool(body.echo)
        if body.stream:
            stream = OpenAIStream(EventBuffer(), head, prompts, include_usage=body.includes_usage)
            choices = [choice for prompt in prompts for choice in prompt.choices()]
            for index, choice in enumerate(choices):
                call.start(CompletionStream(choice, server.tokenizer, stream, index, logprobs=logprobs, echo=echo))
            return call.stream(stream.buffer, stream_headers(server, prompts))
        groups = await collect(request, call, server.tokenizer, prompts)
        outputs = [output for group in groups for output in group]
        returned = [output for group in groups for output in returned_choices(group)]
        reply = Completion(
            object="text_completion",
            id=head.id,
            created=head.created,
            model=head.model,
            system_fingerprint=head.system_fingerprint,
            choices=[_choice(index, output, logprobs=logprobs, echo=echo) for index, output in enumerate(returned)],
            usage=reply_usage(prompts, outputs),
        )
        return json_reply(reply, reply_headers(server, call, prompts, outputs))


def _prompts(body: CompletionRequest, max_prompts: int) -> list[str]:
    if body.suffix is not None:
        raise SuffixError("Suffix is not supported and can be removed from the request")
    texts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    if not texts:
        raise ValidationError("`prompt` must not be empty")
    if len(texts) > max_prompts:
        raise BatchSizeError(f"Number of prompts exceeds the maximum allowed batch size of {max_prompts}: {len(texts)}")
    for text in texts:
        require_inputs(text)
    return texts


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
