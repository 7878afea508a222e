"""The dashboard: files that a browser runs, and the one page that all its addresses are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import FileResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import Scope

STATIC = Path(__file__).parent / "static"
ADDRESSES = ("/", "/runs/{run:path}", "/compare", "/system", "/alerts", "/alerts/{alert}", "/export")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
"""Nothing inline and nobody else; a browser asks whether a file is still what it has, so that an upgrade is seen at once."""

SMALLEST = 500
"""Bytes from which on a file is compressed."""


class _Files(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        answer = await super().get_response(path, scope)
        answer.headers.update(HEADERS)
        return answer


async def _page(_request: Request) -> Response:
    return FileResponse(STATIC / "index.html", headers=HEADERS)


def routes() -> list[BaseRoute]:
    """What answers the dashboard's addresses and files."""
    files = GZipMiddleware(_Files(directory=STATIC), minimum_size=SMALLEST)
    return [*(Route(address, _page) for address in ADDRESSES), Mount("/static", files)]
