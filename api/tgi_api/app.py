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
from tgi_api.routes import chat, completions, generate, info, tokenize
from tgi_api.state import AppState
from tgi_core import __version__
from tgi_core.errors import RequestError

HANDLERS = (*generate.HANDLERS, *chat.HANDLERS, *completions.HANDLERS, *tokenize.HANDLERS, *info.HANDLERS)


def create_app(state: AppState) -> Litestar:
    """The ASGI application over ``state``."""
    api = state.config.api
    app = Litestar(
        route_handlers=[*HANDLERS, document_route(build_document(HANDLERS, __version__)), *docs.HANDLERS],
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
