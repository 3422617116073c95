"""``/v1/completions``."""

from __future__ import annotations

from itertools import accumulate

from litestar import post
from litestar.response.base import ASGIResponse

from tgi_api.body import read_body
from tgi_api.call import Call
from tgi_api.collect import Collected, collect
from tgi_api.errors import AnyRequest, BatchSizeError, SuffixError
from tgi_api.headers import reply_headers, stream_headers
from tgi_api.logprobs import completion_logprobs
from tgi_api.openapi import GENERATION_ERRORS, OPERATION, Operation
from tgi_api.reply import ReplyHead, json_reply, make_head
from tgi_api.schemas.completions import (
    Completion,
    CompletionChoice,
    CompletionChunk,
    CompletionLogprobs,
    CompletionRequest,
)
from tgi_api.schemas.openai import Usage
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
    """A completion with one choice for each prompt, or a stream of its chunks."""
    server = server_of(request)
    with Call(server) as call:
        body = await read_body(request, CompletionRequest)
        texts = _prompts(body, server.config.api.max_client_batch_size)
        options = validate_openai(body, server.limits)
        call.admit(len(texts))
        prompts = [await call.prepare(text, options, add_special_tokens=True) for text in texts]
        head = make_head(server, kind="text_completion", id_prefix="cmpl", model=body.model)
        logprobs = body.logprobs is not None
        if body.stream:
            stream = OpenAIStream(EventBuffer(), head, len(prompts), include_usage=body.includes_usage)
            for index, prompt in enumerate(prompts):
                call.start(CompletionStream(prompt, server.tokenizer, stream, index, logprobs=logprobs))
            return call.stream(stream.buffer, stream_headers(server, prompts))
        outputs = await collect(request, call, server.tokenizer, prompts, include_stop=False)
        return json_reply(_completion(head, outputs, logprobs=logprobs), reply_headers(server, call, outputs))


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


def _completion(head: ReplyHead, outputs: list[Collected], *, logprobs: bool) -> Completion:
    prompt_tokens = sum(len(output.prompt.token_ids) for output in outputs)
    completion_tokens = sum(output.generation.num_tokens for output in outputs)
    return Completion(
        object="text_completion",
        id=head.id,
        created=head.created,
        model=head.model,
        system_fingerprint=head.system_fingerprint,
        choices=[_choice(index, output, logprobs=logprobs) for index, output in enumerate(outputs)],
        usage=Usage(prompt_tokens, completion_tokens, prompt_tokens + completion_tokens),
    )


def _choice(index: int, output: Collected, *, logprobs: bool) -> CompletionChoice:
    columns: CompletionLogprobs | None = None
    if logprobs:
        lengths = [0 if special else len(text) for text, special in zip(output.texts, output.specials, strict=True)]
        offsets = list(accumulate(lengths, initial=0))[:-1]
        columns = completion_logprobs(output.texts, output.logprobs, offsets)
    return CompletionChoice(index, output.text, columns, output.finish_reason.openai)


HANDLERS = (completions,)
