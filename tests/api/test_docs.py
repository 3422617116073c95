"""``/docs`` works without the internet."""

from __future__ import annotations

import re
from urllib.parse import urljoin

import pytest

from tests.support.api import Api


def test_all_links_are_local_and_lead_somewhere(api: Api) -> None:
    page = api.http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "//" not in re.sub(r"<!doctype html>", "", page.text)
    links = re.findall(r'(?:href|src)="([^"]+)"|url: "([^"]+)"', page.text)
    targets = [first or second for first, second in links]
    assert len(targets) == 4
    for target in targets:
        assert api.http.get(urljoin("/docs", target)).status_code == 200


def test_a_slash_at_the_end_keeps_the_links_right(api: Api) -> None:
    reply = api.http.get("/docs/", follow_redirects=False)
    assert reply.status_code == 307
    assert urljoin("/docs/", reply.headers["location"]) == "/docs"


@pytest.mark.parametrize(
    ("name", "media_type", "part"),
    [
        ("swagger-ui.css", "text/css", ".swagger-ui"),
        ("swagger-ui-bundle.js", "text/javascript", "SwaggerUIBundle"),
    ],
)
def test_assets_are_sent_compressed(api: Api, name: str, media_type: str, part: str) -> None:
    reply = api.http.get(f"/docs/{name}")
    assert reply.headers["content-encoding"] == "gzip"
    assert reply.headers["content-type"].startswith(media_type)
    assert int(reply.headers["content-length"]) < 500_000
    assert part in reply.text


def test_the_icon(api: Api) -> None:
    reply = api.http.get("/docs/favicon-32x32.png")
    assert reply.headers["content-type"] == "image/png"
    assert reply.content.startswith(b"\x89PNG")
