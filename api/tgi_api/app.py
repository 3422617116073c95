"""The litestar application."""

from __future__ import annotations

from litestar import Litestar
from litestar.config.cors import CORSConfig
from litestar.exceptions import HTTPException

from tgi_api import docs
from tgi_api.auth import require_key
from tgi_api.error_replies import handle_http_exception, handle_request_error, handle_unexpected
from tgi_api.openapi import build_document, document_route
from tgi_api.request_id import send_request_id
from tgi_api.routes import (
    chat,
    cloud,
    completions,
    generate,
    info,
    messages,
    models,
    requests,
    responses,
    tokenize,
)
from tgi_api.state import AppState
from tgi_core import __version__
from tgi_core.config import ApiConfig
from tgi_core.errors import ExitCode, RequestError, StartupError

HANDLERS = (
    *generate.HANDLERS,
    *chat.HANDLERS,
    *completions.HANDLERS,
    *responses.HANDLERS,
    *messages.HANDLERS,
    *models.HANDLERS,
    *requests.HANDLERS,
    *cloud.HANDLERS,
    *tokenize.HANDLERS,
    *info.HANDLERS,
)


def require_free_routes(api: ApiConfig) -> None:
    """Refuse further paths of the Vertex route and of health that are those of other routes.

    Raises:
        StartupError: one of them is.
    """
    taken = {path for handler in (*HANDLERS, *docs.HANDLERS) for path in handler.paths} | {"/api-doc/openapi.json"}
    for variable, path, own in (
        ("AIP_PREDICT_ROUTE", api.predict_route, {"/vertex"}),
        ("AIP_HEALTH_ROUTE", api.health_route, info.health.paths),
    ):
        if path in taken and path not in own:
            raise StartupError(
                f"{variable}={path} is the path of another route.", "Choose a path of its own.", ExitCode.USAGE
            )


def create_app(state: AppState) -> Litestar:
    """The ASGI application over ``state``."""
    api = state.config.api
    handlers = [*HANDLERS, *cloud.platform_handlers(api.predict_route, api.health_route)]
    app = Litestar(
        route_handlers=[*handlers, document_route(build_document(handlers, __version__)), *docs.HANDLERS],
        guards=[require_key(api.api_key)] if api.api_key else None,
        exception_handlers={
            RequestError: handle_request_error,
            HTTPException: handle_http_exception,
            Exception: handle_unexpected,
        },
        cors_config=CORSConfig(allow_origins=list(api.cors_allow_origin) or ["*"], allow_methods=["GET", "POST"]),
        before_send=[send_request_id],
        request_max_body_size=api.payload_limit,
        openapi_config=None,
        logging_config=None,
    )
    app.state.server = state
    return app
