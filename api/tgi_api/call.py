"""One HTTP request that generates: its permits, its generations, and what is counted about it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from msgspec.structs import replace

from tgi_api.errors import AnyRequest, CancelledRequestError
from tgi_api.metrics import RequestTimings
from tgi_api.output import Output, Prompt
from tgi_api.request_id import request_id_of, set_request_id
from tgi_api.sse import EventBuffer, EventStream
from tgi_api.state import AppState
from tgi_core.errors import RequestError, ValidationError
from tgi_core.requests import GenerationOptions, encode_bad_words, fit_prompt

_CANCELLED = "The request was cancelled"


class Call:
    """A context around a handler. Leaving it ends everything, unless a stream took over; then the stream's end does.

    Whatever way a call ends, its running generations are cancelled, its permits are given back and each generation
    is counted once: as a success, as a failure by its cause, or as dropped by the client.

    Args:
        server: the server.
        request: the HTTP request.

    Attributes:
        arrived_at: seconds of ``time.monotonic``.
    """

    def __init__(self, server: AppState, request: AnyRequest) -> None:
        self.arrived_at = time.monotonic()
        self._server = server
        self._scope = request.scope
        self._outputs: list[Output] = []
        self._permits = 0
        self._is_streamed = False
        self._is_closed = False
        self._is_cancelled = False
        server.metrics.request_count.inc()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, RequestError) and not self._outputs:
            self._server.metrics.request_failure.inc(value=error.metric)
        if not self._is_streamed:
            self.close()

    @property
    def request_id(self) -> str:
        """What the client may cancel the request by."""
        return request_id_of(self._scope)

    def admit(self, num_generations: int, request_id: str | None = None) -> None:
        """Take a permit for each generation, besides those taken before; from now on the request can be cancelled.

        ``request_id``: the one in the body, if there is one; it wins over the header.

        Raises:
            ValidationError: there are not so many.
            OverloadedError: not enough are free.
            EngineUnavailableError: the server drains.
        """
        is_first = self._permits == 0
        if is_first and request_id is not None:
            set_request_id(self._scope, request_id)
        self._server.permits.take(num_generations, held=self._permits)
        self._permits += num_generations
        if is_first:
            self._server.running.add(self.request_id, self)
        # The first generation was counted as the request arrived.
        self._server.metrics.request_count.inc(num_generations - 1 if is_first else num_generations)

    async def prepare(
        self,
        sources: Sequence[str | Sequence[int]],
        options: GenerationOptions,
        *,
        add_special_tokens: bool,
        field: str = "inputs",
    ) -> list[Prompt]:
        """Make prompts of texts, or of token ids, which are taken as they are; the client sent them as ``field``.

        At last, as in TGI, see whether the constraint on the output can be served.

        Raises:
            ValidationError: a text is too long, or not Unicode; an id is not in the vocabulary; or the constraint or a
                bad word cannot be served.
        """
        server = self._server
        prompts = [
            await self._prepare(source, options, add_special_tokens=add_special_tokens, field=field)
            for source in sources
        ]
        if options.bad_words:
            bad_words = await encode_bad_words(options.bad_words, server.tokenizer, server.info.vocab_size)
            options = replace(options, sampling=replace(options.sampling, bad_words=bad_words))
        if options.grammar is not None and server.grammars is not None:
            options = replace(options, grammar=await server.grammars.check(options.grammar))
        return [replace(prompt, options=options) for prompt in prompts]

    async def _prepare(
        self, source: str | Sequence[int], options: GenerationOptions, *, add_special_tokens: bool, field: str
    ) -> Prompt:
        server = self._server
        vocab_size = server.info.vocab_size
        prefix_ids: Sequence[int] = ()
        if isinstance(source, str):
            ids: Sequence[int] = await server.tokenizer.encode(source, add_special_tokens)
            if max(ids, default=0) >= vocab_size:
                # A tokenizer may know more tokens than the model; one of them would take the device down.
                raise ValidationError(f"token {max(ids)} of the tokenizer is not in the model's vocabulary")
            if add_special_tokens:
                prefix_ids = server.tokenizer.prefix_ids
        else:
            ids = source
            unknown = next((token_id for token_id in ids if not 0 <= token_id < vocab_size), None)
            if unknown is not None:
                raise ValidationError(f"`prompt` must hold token ids below {vocab_size}. Given: {unknown}")
        token_ids, max_new_tokens = fit_prompt(ids, options, server.limits, prefix_ids, field)
        text = source if isinstance(source, str) else await asyncio.to_thread(server.tokenizer.decode, ids, True)
        decoder_prompt = server.info.decoder_prompt
        return Prompt(text, token_ids, max_new_tokens, options, decoder_prompt)

    def start(self, output: Output) -> None:
        """Send a generation to the engine.

        Raises:
            EngineUnavailableError: no engine is up.
            CancelledRequestError: the request was cancelled.
        """
        if self._is_cancelled:
            raise CancelledRequestError(_CANCELLED)
        prompt = output.prompt
        output.generation.submit(self._server.client, prompt.token_ids, prompt.max_new_tokens)
        self._outputs.append(output)
        self._server.metrics.observe_submitted(
            len(prompt.token_ids), prompt.max_new_tokens, output.generation.submitted_at - self.arrived_at
        )

    def stream(self, buffer: EventBuffer, headers: dict[str, str]) -> EventStream:
        """The response that sends ``buffer`` and closes this call at its end."""
        self._is_streamed = True
        return EventStream(buffer, self.close, headers)

    def cancel(self) -> int:
        """End every generation with an error; how many there were."""
        self._is_cancelled = True
        running = [output for output in self._outputs if output.reason is None and output.error is None]
        for output in running:
            output.generation.cancel()
            output.generation.on_error(CancelledRequestError(_CANCELLED))
        return len(running)

    def close(self) -> None:
        """End the call; idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._permits:
            self._server.running.remove(self.request_id, self)
        for output in self._outputs:
            self._account(output)
        self._server.permits.release(self._permits)

    def timings(self, output: Output) -> RequestTimings:
        """What a finished generation took."""
        generation = output.generation
        return RequestTimings(
            total_s=generation.ended_at - self.arrived_at,
            validation_s=generation.submitted_at - self.arrived_at,
            queue_s=generation.queue_seconds,
            inference_s=max(0.0, generation.ended_at - generation.submitted_at - generation.queue_seconds),
            first_token_s=generation.first_token_at - self.arrived_at,
            input_tokens=len(output.prompt.token_ids),
            generated_tokens=generation.num_tokens,
            cached_tokens=generation.cached_tokens,
        )

    def _account(self, output: Output) -> None:
        metrics = self._server.metrics
        if output.reason is not None:
            metrics.observe_success(self.timings(output))
        elif output.error is not None:
            metrics.request_failure.inc(value=output.error.metric)
        else:
            output.generation.cancel()
            metrics.request_failure.inc(value="dropped")
