"""Swagger UI, served from files of this package, so that /docs works without the internet."""

from __future__ import annotations

from importlib.resources import files

from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse

from tgi_api.errors import AnyRequest

_ASSETS = files("tgi_api") / "assets" / "swagger-ui"

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>tgi-serve API</title>
<link rel="icon" type="image/png" href="docs/favicon-32x32.png">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script>
SwaggerUIBundle({
  url: "api-doc/openapi.json",
  dom_id: "#swagger-ui",
  validatorUrl: null,
  deepLinking: true,
  presets: [SwaggerUIBundle.presets.apis],
});
</script>
</body>
</html>
"""


@get("/docs", sync_to_thread=False)
def docs_page(request: AnyRequest) -> ASGIResponse:
    """The page. Its links are relative, so that it also works behind a path prefix."""
    if request.scope["raw_path"].endswith(b"/"):
        return ASGIResponse(status_code=307, headers={"location": "../docs"})
    return ASGIResponse(body=_PAGE, media_type="text/html")


def _asset_route(name: str, media_type: str, encoding: str = "") -> HTTPRouteHandler:
    """A route for one of Swagger UI's files; with ``encoding`` "gzip" it is stored, and sent, compressed."""
    headers = {"cache-control": "public, max-age=86400"} | ({"content-encoding": encoding} if encoding else {})

    @get(f"/docs/{name}", sync_to_thread=True)
    def asset() -> ASGIResponse:
        file = _ASSETS / (f"{name}.gz" if encoding else name)
        return ASGIResponse(body=file.read_bytes(), media_type=media_type, headers=headers)

    return asset


HANDLERS = (
    docs_page,
    _asset_route("swagger-ui.css", "text/css", "gzip"),
    _asset_route("swagger-ui-bundle.js", "text/javascript", "gzip"),
    _asset_route("favicon-32x32.png", "image/png"),
)
