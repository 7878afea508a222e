"""The dashboard's routes: its static files, and one HTML page for all its addresses."""

import gzip
from functools import cache
from hashlib import sha256
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from trackside_daemon.web.http.auth_token import READING
from trackside_daemon.web.http.negotiation import accepts_gzip

STATIC = Path(__file__).parent / "static"
PAGE = "index.html"
ADDRESSES = ("/", "/runs", "/runs/{run:path}", "/compare", "/system", "/alerts", "/alerts/{alert}", "/export", "/fleet")
# No inline code and no other origin. The browser revalidates each file, so that an upgrade takes effect at once.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' blob:; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

MIN_GZIP_BYTES = 500  # smaller files are not compressed
# Not from `mimetypes`, which reads the types of the machine: they differ, and cost 1 MiB.
TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}


class StaticFile:
    """A static file, read at start so that an upgrade of the package cannot mix two versions."""

    def __init__(self, path: Path) -> None:
        plain = path.read_bytes()
        # Without a time, the compressed bytes are the same after each start.
        self._compressed = gzip.compress(plain, mtime=0) if len(plain) >= MIN_GZIP_BYTES else b""
        self._plain = b"" if self._compressed else plain  # one form is enough, because all browsers accept gzip
        self._type = TYPES.get(path.suffix, "text/plain")
        self._hash = f'"{sha256(plain).hexdigest()[:16]}"'

    def respond(self, request: Request) -> Response:
        """Return the file, compressed if the browser accepts that, or 304 if the browser's copy is current."""
        # Weak, because the plain and the compressed form share the tag.
        headers = {**HEADERS, "ETag": f"W/{self._hash}", "Vary": "Accept-Encoding"}
        if self._hash in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if self._compressed and accepts_gzip(request.headers.get("accept-encoding", "")):
            headers["Content-Encoding"] = "gzip"
            content = self._compressed
        else:
            content = self._plain or gzip.decompress(self._compressed)
        return Response(content, headers=headers, media_type=self._type)


@cache
def _files() -> dict[str, StaticFile]:
    return {path.relative_to(STATIC).as_posix(): StaticFile(path) for path in STATIC.rglob("*") if path.is_file()}


async def _page(request: Request) -> Response:
    return _files()[PAGE].respond(request)


def lost(request: Request) -> Response | None:
    """Return the page for an address that a person mistyped, which links to the dashboard. Return None to a program."""
    if request.method not in READING or "text/html" not in request.headers.get("accept", ""):
        return None
    if request.url.path.startswith(("/api/", "/static/", "/-/")):
        return None
    response = _files()[PAGE].respond(request)
    response.status_code = 404
    return response


async def _file(request: Request) -> Response:
    file = _files().get(request.path_params["path"])
    if file is None:
        raise HTTPException(404)
    return file.respond(request)


def routes() -> list[BaseRoute]:
    """Return the routes of the dashboard's pages and static files."""
    # Now and not at the first request, so that an upgrade of the package cannot mix two versions.
    _files()
    return [*(Route(address, _page) for address in ADDRESSES), Route("/static/{path:path}", _file)]
