"""The routes that SageMaker and Vertex AI call: ``/invocations``, and ``/vertex`` with its further paths."""

from __future__ import annotations

from litestar import HttpMethod, post, route
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from tgi_api.body import decode_body, read_body, read_bytes
from tgi_api.call import Call
from tgi_api.collect import Collected, collect, most_likely
from tgi_api.conversation import Conversation, prepare_conversation
from tgi_api.errors import AnyRequest, BodyTypeError
from tgi_api.openapi import GENERATION_ERRORS, OPERATION, Operation
from tgi_api.output import Prompt
from tgi_api.reply import json_reply
from tgi_api.routes.chat import answer_chat
from tgi_api.routes.completions import answer_completion
from tgi_api.routes.generate import answer_compat, prepare_generate
from tgi_api.routes.info import health
from tgi_api.schemas.chat import ChatCompletion, ChatCompletionChunk, ChatRequest
from tgi_api.schemas.cloud import InvocationKeys, VertexRequest, VertexResponse
from tgi_api.schemas.completions import Completion, CompletionChunk, CompletionRequest
from tgi_api.schemas.generate import CompatGenerateRequest, GenerateRequest, GenerateResponse, StreamResponse
from tgi_api.state import AppState, server_of
from tgi_core.errors import ValidationError
from tgi_core.requests.replies import parse_reply

_TAG = "Cloud platforms"

_VERTEX = Operation(
    "Vertex AI: several requests at once",
    _TAG,
    VertexRequest,
    VertexResponse,
    errors=GENERATION_ERRORS,
    has_tgi_errors=True,
)


@post(
    "/invocations",
    status_code=200,
    opt={
        OPERATION: Operation(
            "SageMaker: what / does for `inputs`, a chat for `messages`, a completion for `prompt`",
            _TAG,
            body=(CompatGenerateRequest, ChatRequest, CompletionRequest),
            reply=(list[GenerateResponse], ChatCompletion, Completion),
            event=(StreamResponse, ChatCompletionChunk, CompletionChunk),
            errors=GENERATION_ERRORS,
        )
    },
)
async def invocations(request: AnyRequest) -> ASGIResponse:
    """What the route for this kind of body replies."""
    server = server_of(request)
    with Call(server, request) as call:
        content = await read_bytes(request)
        keys = decode_body(content, InvocationKeys)
        if _is_given(keys.inputs):
            return await answer_compat(request, call, server, decode_body(content, CompatGenerateRequest))
        if _is_given(keys.messages):
            return await answer_chat(request, call, server, decode_body(content, ChatRequest))
        if _is_given(keys.prompt):
            return await answer_completion(request, call, server, decode_body(content, CompletionRequest))
        raise BodyTypeError("Object must have one of the fields `inputs`, `messages`, `prompt`")


@post("/vertex", status_code=200, opt={OPERATION: _VERTEX})
async def vertex(request: AnyRequest) -> ASGIResponse:
    """The texts of all instances; the first failure is the reply's."""
    server = server_of(request)
    with Call(server, request) as call:
        body = await read_body(request, VertexRequest)
        if not body.instances:
            raise ValidationError("`instances` must not be empty")
        server.permits.require(len(body.instances))
        instances = [await _prepare(call, server, index, content) for index, content in enumerate(body.instances)]
        prompts = [instance.prompt if isinstance(instance, Conversation) else instance for instance in instances]
        groups = await collect(request, call, server.tokenizer, prompts)
        texts = [_text(instance, group) for instance, group in zip(instances, groups, strict=True)]
        return json_reply(VertexResponse(texts))


def platform_handlers(predict_route: str | None, health_route: str | None) -> list[HTTPRouteHandler]:
    """``/vertex`` and ``/health`` under the paths that Vertex AI's environment names, unless they are the same."""
    handlers: list[HTTPRouteHandler] = []
    if predict_route is not None and predict_route != "/vertex":
        handlers.append(post(predict_route, status_code=200, opt={OPERATION: _VERTEX})(vertex.fn))
    if health_route is not None and health_route not in health.paths:
        operation = health.opt[OPERATION]
        methods = [HttpMethod.GET, HttpMethod.HEAD]
        handlers.append(
            route(
                health_route,
                http_method=methods,
                sync_to_thread=False,
                opt={OPERATION: replace(operation, has_tgi_errors=True)},
            )(health.fn)
        )
    return handlers


def _is_given(value: Raw | UnsetType) -> bool:
    return value is not UNSET and bytes(value) != b"null"


async def _prepare(call: Call, server: AppState, index: int, content: Raw) -> Prompt | Conversation:
    try:
        keys = decode_body(bytes(content), InvocationKeys)
        if _is_given(keys.inputs):
            return await prepare_generate(call, server, decode_body(bytes(content), GenerateRequest), stream=False)
        body = decode_body(bytes(content), ChatRequest)
    except BodyTypeError as error:
        raise BodyTypeError(f"{error.detail} (in `instances[{index}]`)") from None
    if body.stream or (body.n or 1) > 1:
        raise ValidationError(f"`instances[{index}]` must not stream or have several choices: it becomes one text")
    if body.tools and body.tool_choice != "none":
        raise ValidationError(f"`instances[{index}].tools` must be left out: a prediction is a text and has no calls")
    return await prepare_conversation(call, server, body)


def _text(instance: Prompt | Conversation, outputs: list[Collected]) -> str:
    best = most_likely(outputs)[0]
    if isinstance(instance, Prompt):
        return best.text
    return parse_reply(instance.make_parser(), zip(best.texts, best.specials, strict=True)).content


HANDLERS = (invocations, vertex)
