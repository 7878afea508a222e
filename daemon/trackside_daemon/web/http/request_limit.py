"""A limit on the requests that the server handles at once."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from trackside_daemon.web.http.auth_token import error_response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

# Requests at once. Further ones get status 503.
MAX_REQUESTS = 256

# Requests at once for /metrics, and as many for /-/…, which do not count towards `MAX_REQUESTS`: many streams of the
# dashboard must not stop a scrape, nor make a liveness probe restart the daemon.
RESERVED_REQUESTS = 64

# Messages of agents at once, apart from `MAX_REQUESTS`: most of them wait for an event, which costs next to nothing.
MAX_WAITS = 1024
WAITS = "/api/v1/mcp"


class RequestLimit:
    """Middleware that refuses a request while too many others of its kind are in progress.

    It counts requests, not connections, so that idle connections use up no room.

    Args:
        app: The application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._active: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, or pass it on to the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        kind = _kind(scope["path"])
        # No lock is needed: all requests run in the event loop's thread.
        if self._active[kind] >= _most(kind):
            headers = {"Connection": "close", "Retry-After": "1"}
            refusal = error_response(503, "busy", "too many requests are in progress; try again", headers)
            await refusal(scope, receive, send)
            return
        self._active[kind] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._active[kind] -= 1


def _kind(path: str) -> str:
    """Return the reserve that a request uses; empty for none."""
    if path in {"/metrics", WAITS}:
        return path
    return "/-/" if path.startswith("/-/") else ""


def _most(kind: str) -> int:
    if kind == WAITS:
        return MAX_WAITS
    return RESERVED_REQUESTS if kind else MAX_REQUESTS
