"""What the server is and how it is: ``/info``, ``/v1/models``, health and metrics."""

from __future__ import annotations

from litestar import HttpMethod, get, route
from litestar.response.base import ASGIResponse
from msgspec import UNSET

from tgi_api.errors import AnyRequest
from tgi_api.exposition import CONTENT_TYPE
from tgi_api.openapi import OPERATION, Operation
from tgi_api.reply import json_reply
from tgi_api.schemas.error import ErrorResponse
from tgi_api.schemas.info import Info, ModelInfo, ModelsInfo
from tgi_api.state import server_of
from tgi_core import __version__
from tgi_core.requests import GENERATE_FIELDS

_TAG = "Server"


@get(
    "/info", sync_to_thread=False, opt={OPERATION: Operation("Model and limits", _TAG, reply=Info, is_protected=False)}
)
def info(request: AnyRequest) -> ASGIResponse:
    """The model and the limits."""
    server = server_of(request)
    engine, api = server.info, server.config.api
    unsupported = {GENERATE_FIELDS.get(name, name): reason for name, reason in server.unsupported.items()}
    return json_reply(
        Info(
            model_id=server.model_id,
            model_sha=server.model_sha,
            model_dtype=f"torch.{engine.dtype}",
            model_device_type=engine.device,
            model_pipeline_tag=None,
            max_concurrent_requests=api.max_concurrent_requests,
            max_best_of=api.max_best_of,
            max_stop_sequences=api.max_stop_sequences,
            max_input_tokens=engine.max_input_tokens,
            max_input_length=engine.max_input_tokens,
            max_total_tokens=engine.max_total_tokens,
            max_batch_total_tokens=engine.kv_tokens,
            max_batch_prefill_tokens=engine.max_step_tokens,
            max_batch_size=engine.max_slots,
            # A request joins the running batch at the next step, however few wait.
            waiting_served_ratio=0.0,
            max_waiting_tokens=0,
            validation_workers=api.validation_workers,
            max_client_batch_size=api.max_client_batch_size,
            router="tgi-serve",
            version=__version__,
            sha=None,
            docker_label=None,
            unsupported_parameters=unsupported or UNSET,
        )
    )


@get(
    "/v1/models",
    sync_to_thread=False,
    opt={OPERATION: Operation("Served models", "OpenAI", reply=ModelsInfo, is_protected=False)},
)
def models(request: AnyRequest) -> ASGIResponse:
    """The served model, under each of its names."""
    server = server_of(request)
    names = [ModelInfo(name, "model", 0, server.model_id) for name in server.model_names]
    return json_reply(ModelsInfo("list", names))


@route(
    ["/", "/health", "/health/ready", "/ping"],
    http_method=[HttpMethod.GET, HttpMethod.HEAD],
    sync_to_thread=False,
    opt={
        OPERATION: Operation(
            "Whether requests are served", _TAG, text="Healthy; no body", errors=(503,), is_protected=False
        )
    },
)
def health(request: AnyRequest) -> ASGIResponse:
    """200 while an engine is up, whatever the load; else 503 with the reason."""
    server = server_of(request)
    problem = server.ill_health
    if not problem:
        return ASGIResponse(media_type="text/plain")
    return json_reply(ErrorResponse(f"unhealthy: {problem}", "healthcheck"), status_code=503)


@route(
    "/health/live",
    http_method=[HttpMethod.GET, HttpMethod.HEAD],
    sync_to_thread=False,
    opt={OPERATION: Operation("Whether the HTTP side runs", _TAG, text="Alive; no body", is_protected=False)},
)
def live() -> ASGIResponse:
    """200 for as long as there is somebody to answer: without an engine the server mends itself."""
    return ASGIResponse(media_type="text/plain")


@get(
    "/metrics",
    sync_to_thread=False,
    opt={OPERATION: Operation("Prometheus metrics", _TAG, text="Text format 0.0.4", is_protected=False)},
)
def metrics(request: AnyRequest) -> ASGIResponse:
    """Prometheus' text format."""
    server = server_of(request)
    return ASGIResponse(body=server.metrics.render(), headers={"content-type": CONTENT_TYPE})


HANDLERS = (info, models, health, live, metrics)
