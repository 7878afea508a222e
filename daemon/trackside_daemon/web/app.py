"""The pages: what each path answers."""

from __future__ import annotations

import time
import zlib
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Match, Route

from trackside_daemon import __version__
from trackside_daemon.web import dashboard
from trackside_daemon.web.api.openapi import ENDPOINTS, document
from trackside_daemon.web.exposition import own_families, render
from trackside_daemon.web.http.auth_token import Guard, Token, error
from trackside_daemon.web.http.negotiation import accepts_gzip, choose

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from starlette.requests import Request
    from starlette.types import Scope

    from trackside_daemon.model.state import State
    from trackside_daemon.web.api.alerts import AlertPages
    from trackside_daemon.web.api.gpu import GpuPages
    from trackside_daemon.web.api.history import HistoryPages
    from trackside_daemon.web.api.openapi import Endpoint
    from trackside_daemon.web.api.overview.pages import OverviewPages
    from trackside_daemon.web.api.processes import ProcessPages

_REASONS = {
    400: "bad_request",
    404: "not_found",
    405: "method",
    409: "conflict",
    500: "damaged",
    503: "stuck",
    507: "full",
}
OWN = "trackside"
"""What `collect[]` calls the families of the daemon itself, those of its process among them."""


class Pages:
    """Answers requests from the state.

    Args:
        state: What is shown.
        sources: The names that ``collect[]`` and ``exclude[]`` may have.
        ready: Whether the first samples are there.
        status: What ``/api/v1/status`` says beside what is in the state.
        reload: Reads the configuration again, and returns what is wrong with it, or nothing; None when not allowed.
        history: What the API tells of runs.
        alerts: What it tells of alerts.
        gpu: What it does with the GPUs.
        processes: What it tells of processes.
        overview: What it tells of all that is now.
    """

    def __init__(
        self,
        state: State,
        *,
        sources: Collection[str],
        ready: Callable[[], bool],
        status: Callable[[], dict[str, Any]],
        history: HistoryPages,
        alerts: AlertPages,
        gpu: GpuPages,
        processes: ProcessPages,
        overview: OverviewPages,
        reload: Callable[[], str] | None = None,
    ) -> None:
        self._state = state
        self._sources = frozenset(sources) | {OWN}
        self._ready = ready
        self._status = status
        self._reload = reload
        self._pages = {
            "daemon": self,
            "history": history,
            "alerts": alerts,
            "gpu": gpu,
            "processes": processes,
            "overview": overview,
        }
        self._own = own_families()

    def app(self, *, token: Token, hosts: Collection[str], public_read: bool) -> Starlette:
        """The application, guarded."""
        routes = [
            Route("/metrics", self.metrics),
            Route("/-/healthy", self.healthy),
            Route("/-/ready", self.ready),
            Route("/-/reload", self.reload, methods=["POST", "PUT"]),
            *(_ApiRoute(f"/api/v1{one.path}", self._answer(one), methods=[one.method]) for one in ENDPOINTS),
            *dashboard.routes(),
        ]
        guard = Middleware(Guard, token=token, hosts=hosts, public_read=public_read)
        return Starlette(routes=routes, middleware=[guard], exception_handlers={HTTPException: _http_error})

    async def metrics(self, request: Request) -> Response:
        """``/metrics``, in the format that is asked for."""
        wanted = self._wanted(request.query_params.getlist("collect[]"), request.query_params.getlist("exclude[]"))
        chosen = choose(request.headers.get("accept", ""))
        snapshot = self._state.snapshot(time.monotonic(), None if wanted is None else lambda one: _part(one) in wanted)
        own = self._own if wanted is None or OWN in wanted else None
        body = render(snapshot, openmetrics=chosen.openmetrics, own=own)
        headers = {"Content-Type": chosen.content_type, "Vary": "Accept, Accept-Encoding"}
        if accepts_gzip(request.headers.get("accept-encoding", "")):
            compressor = zlib.compressobj(1, zlib.DEFLATED, 31)
            body = compressor.compress(body) + compressor.flush()
            headers["Content-Encoding"] = "gzip"
        return Response(body, headers=headers)

    async def healthy(self, _request: Request) -> Response:
        """``/-/healthy``: the process serves."""
        return PlainTextResponse("trackside is healthy.\n")

    async def ready(self, _request: Request) -> Response:
        """``/-/ready``: the first samples are there."""
        if self._ready():
            return PlainTextResponse("trackside is ready.\n")
        return PlainTextResponse("trackside is waiting for its first samples.\n", 503)

    async def reload(self, _request: Request) -> Response:
        """``/-/reload``, as SIGHUP, when web.enable-lifecycle allows it."""
        if self._reload is None:
            return error(
                403, "lifecycle", "reloading over HTTP is off; start with --web.enable-lifecycle, or use SIGHUP"
            )
        wrong = self._reload()
        return error(500, "config", wrong) if wrong else PlainTextResponse("reloaded\n")

    async def status(self, _request: Request) -> Response:
        """``/api/v1/status``."""
        return JSONResponse(self._status())

    async def openapi(self, _request: Request) -> Response:
        """``/api/v1/openapi.json``."""
        return JSONResponse(document(__version__))

    def _answer(self, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        """The method that answers an endpoint of the API."""
        answer: Callable[[Request], Awaitable[Response]] = getattr(self._pages[endpoint.pages], endpoint.handler)
        return answer

    def _wanted(self, collect: list[str], exclude: list[str]) -> frozenset[str] | None:
        """The sources that a scrape asks for; None for all."""
        if collect and exclude:
            raise HTTPException(400, "collect[] and exclude[] cannot be combined")
        unknown = [name for name in (*collect, *exclude) if name not in self._sources]
        if unknown:
            raise HTTPException(400, f"no collector {unknown[0]!r}; there are {', '.join(sorted(self._sources))}")
        if not collect and not exclude:
            return None
        return frozenset(collect) or self._sources - set(exclude)


class _ApiRoute(Route):
    """Looks at the path as it was sent: an id with a slash, which is encoded there, is no longer path."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        raw = scope.get("raw_path") or quote(scope["path"]).encode()
        match, found = super().matches({**scope, "path": raw.partition(b"?")[0].decode("ascii", "replace")})
        if match is not Match.NONE:
            found["path_params"] = {name: unquote(text) for name, text in found["path_params"].items()}
        return match, found


def _part(source: str) -> str:
    return source.partition(":")[0]


async def _http_error(_request: Request, problem: Exception) -> Response:
    if not isinstance(problem, HTTPException):
        raise problem
    reason = _REASONS.get(problem.status_code, "error")
    return error(problem.status_code, reason, problem.detail, dict(problem.headers or {}))
