"""The dashboard: files that a browser runs, and the one page that all its addresses are."""

from __future__ import annotations

import gzip
from functools import cache
from hashlib import sha256
from mimetypes import guess_type
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from trackside_daemon.web.http.negotiation import accepts_gzip

if TYPE_CHECKING:
    from starlette.requests import Request

STATIC = Path(__file__).parent / "static"
PAGE = "index.html"
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


class File:
    """A file as it was when the daemon began, so that what it serves is of one version also while it is upgraded.

    Args:
        path: Where it lies.
    """

    def __init__(self, path: Path) -> None:
        self._plain = path.read_bytes()
        self._packed = gzip.compress(self._plain, mtime=0) if len(self._plain) >= SMALLEST else b""
        self._type = guess_type(path.name)[0] or "text/plain"
        self._hash = f'"{sha256(self._plain).hexdigest()[:16]}"'

    def answer(self, request: Request) -> Response:
        """The file, compressed for who takes that; or that it is what the browser has."""
        headers = {**HEADERS, "ETag": f"W/{self._hash}", "Vary": "Accept-Encoding"}
        if self._hash in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        packed = self._packed and accepts_gzip(request.headers.get("accept-encoding", ""))
        if packed:
            headers["Content-Encoding"] = "gzip"
        return Response(self._packed if packed else self._plain, headers=headers, media_type=self._type)


@cache
def _files() -> dict[str, File]:
    return {path.relative_to(STATIC).as_posix(): File(path) for path in STATIC.rglob("*") if path.is_file()}


async def _page(request: Request) -> Response:
    return _files()[PAGE].answer(request)


async def _file(request: Request) -> Response:
    file = _files().get(request.path_params["path"])
    if file is None:
        raise HTTPException(404)
    return file.answer(request)


def routes() -> list[BaseRoute]:
    """What answers the dashboard's addresses and files."""
    _files()
    return [*(Route(address, _page) for address in ADDRESSES), Route("/static/{path:path}", _file)]
