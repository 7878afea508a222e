"""The HTTP application and the handler of each path."""

import asyncio
import re
import time
import zlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote, unquote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Match, Route
from starlette.types import Scope

from trackside_daemon.config.near import near_name
from trackside_daemon.model.state import State
from trackside_daemon.questions.alerts import Alerts
from trackside_daemon.questions.question import SHOWN, parameters
from trackside_daemon.web import dashboard, page_profile
from trackside_daemon.web.api.endpoints import ENDPOINTS, Endpoint
from trackside_daemon.web.api.history_access import HistoryAccess
from trackside_daemon.web.exposition import process_registry, render, render_protobuf
from trackside_daemon.web.http.auth_token import READING, Token, TokenMiddleware, error_response, role_error
from trackside_daemon.web.http.negotiation import accepts_gzip, negotiate_format
from trackside_daemon.web.http.roles import Role
from trackside_daemon.web.rank_statistics import RankStatistics

Handler = Callable[[Request], Awaitable[Response]]

REASONS = {
    400: "bad_request",
    404: "not_found",
    405: "method",
    409: "conflict",
    500: "damaged",
    503: "stuck",
    507: "full",
}
OTHER_REASONS = frozenset(
    ("busy", "config", "credentials", "cross_site", "host", "lifecycle", "passwords", "rate_limit", "role", "token")
)
"""Reasons of errors that do not follow from their status."""
STILL_SECONDS = 2.0  # for which no process of a run may do anything before it counts as one that hangs
OWN_SOURCE = "trackside"  # the name in `collect[]` for the daemon's own families, including those of its process


class WebApp:
    """The HTTP application: metrics, health, API routes and the dashboard.

    Args:
        state: The newest value of every series.
        sources: The names permitted in ``collect[]`` and ``exclude[]``.
        ready: Returns True once the first samples are present.
        reload: Reloads the configuration and returns the problem, or an empty text; None when not permitted.
        access: Answers questions to the history.
        apis: The objects whose methods answer the other endpoints.
        profile: ``cluster`` for the metrics page of `page_profile`.
    """

    def __init__(
        self,
        state: State,
        *,
        sources: Collection[str],
        ready: Callable[[], bool],
        access: HistoryAccess,
        apis: Iterable[object],
        reload: Callable[[], str] | None = None,
        profile: str = "full",
    ) -> None:
        self._state = state
        self._sources = frozenset(sources) | {OWN_SOURCE}
        self._ready = ready
        self._reload = reload
        self._profile = profile
        self._access = access
        self._apis = {type(api).__name__: api for api in apis}
        self._process_registry = process_registry()
        self._rank_statistics = RankStatistics()

    def build(
        self,
        *,
        token: Token,
        hosts: Collection[str],
        public_read: bool,
        any_host: bool = False,
        origins: Collection[str] = (),
    ) -> Starlette:
        """Return the application behind the token check; see `TokenMiddleware` for the arguments.

        Args:
            token: The token that opens the API.
            hosts: Names of the daemon.
            public_read: Reading needs no token.
            any_host: ``/metrics`` answers under any name.
            origins: Origins whose pages may read the API; to change something stays forbidden to them.
        """
        routes = [
            Route("/metrics", self.metrics),
            Route("/-/healthy", self.healthy),
            Route("/-/ready", self.ready),
            Route("/-/run/{name:path}/live", self.live),
            Route("/-/reload", self.reload, methods=["POST", "PUT"]),
            *(_ApiRoute(path, handlers) for path, handlers in self._handlers().items()),
            *dashboard.routes(),
        ]
        guard = Middleware(TokenMiddleware, token=token, hosts=hosts, public_read=public_read, any_host=any_host)
        # In front of the guard: a browser asks for permission without the token.
        shared = Middleware(
            CORSMiddleware, allow_origins=list(origins), allow_methods=sorted(READING), allow_headers=["Authorization"]
        )
        return Starlette(
            routes=routes,
            middleware=[shared, guard] if origins else [guard],
            exception_handlers={HTTPException: _http_error},
        )

    async def metrics(self, request: Request) -> Response:
        """Answer ``/metrics`` in the negotiated format."""
        sources = self._selected_sources(
            request.query_params.getlist("collect[]"), request.query_params.getlist("exclude[]")
        )
        chosen = negotiate_format(request.headers.get("accept", ""))
        whole = self._state.snapshot(
            time.monotonic(), None if sources is None else lambda source: source.partition(":")[0] in sources
        )
        snapshot = self._rank_statistics.apply(whole)
        if self._profile == "cluster":
            snapshot = page_profile.apply(snapshot)
        own = self._process_registry if sources is None or OWN_SOURCE in sources else None
        body = (
            render_protobuf(snapshot, own)
            if chosen.protobuf
            else render(snapshot, openmetrics=chosen.openmetrics, process_metrics=own)
        )
        headers = {"Content-Type": chosen.content_type, "Vary": "Accept, Accept-Encoding"}
        if accepts_gzip(request.headers.get("accept-encoding", "")):
            # Level 1: Prometheus scrapes often, and the page is repetitive. 31 selects a gzip header with the largest
            # window.
            compressor = zlib.compressobj(1, zlib.DEFLATED, 31)
            body = compressor.compress(body) + compressor.flush()
            headers["Content-Encoding"] = "gzip"
        return Response(body, headers=headers)

    async def healthy(self, _request: Request) -> Response:
        """Answer ``/-/healthy``: 200 while the process serves requests."""
        return PlainTextResponse("trackside is healthy.\n")

    async def ready(self, _request: Request) -> Response:
        """Answer ``/-/ready``: 200 once the first samples are present, else 503."""
        if self._ready():
            return PlainTextResponse("trackside is ready.\n")
        return PlainTextResponse("trackside is waiting for its first samples.\n", 503)

    async def live(self, request: Request) -> Response:
        """Answer ``/-/run/NAME/live``: 503 once the verdict says that the run hangs; 200 else, also if nothing is known of it."""
        from trackside_daemon.captures.hang.verdict import hanging

        name, text = request.path_params["name"], ""
        try:
            found = await self._access.ask(Alerts(run=name, firing=True, alert="TrainingStalled")) if name else {}
            for alert in found.get("alerts", ()):
                # A name that only begins like an id, or the newest run of several, must not show another run's.
                if name in {alert["run"], alert["labels"].get("run")} and not text:
                    text = await _proven(alert)
                    later = await self._access.ask(Alerts(run=alert["run"], firing=True)) if text else {"alerts": ()}
                    text = text if any(one["id"] == alert["id"] and hanging(one) for one in later["alerts"]) else ""
        except Exception:  # noqa: BLE001  whoever asks ends the run after a 503
            text = ""
        if not text:
            return PlainTextResponse("nothing says that it hangs\n")
        # The header distinguishes this answer from the 503 of a proxy or of another server.
        return PlainTextResponse(f"{text}\n", 503, {"Trackside-Verdict": "hangs"})

    async def reload(self, _request: Request) -> Response:
        """Reload the configuration, as SIGHUP does, when web.enable-lifecycle permits it."""
        if self._reload is None:
            return error_response(
                403, "lifecycle", "reloading over HTTP is off; start with --web.enable-lifecycle, or use SIGHUP"
            )
        problem = self._reload()
        return error_response(500, "config", problem) if problem else PlainTextResponse("reloaded\n")

    def _handlers(self) -> dict[str, dict[str, tuple[Role, Handler]]]:
        """Return the methods that answer the endpoints of the API and the roles they need, by path and HTTP method."""
        handlers: dict[str, dict[str, tuple[Role, Handler]]] = {}
        for endpoint in ENDPOINTS:
            # A question is answered by the history, another endpoint by the object that has its method.
            if endpoint.is_question:
                handler = partial(self._access.respond, endpoint.handler)
            else:
                handler = partial(endpoint.handler, self._apis[endpoint.owner])
            checked = _checking_names(endpoint, handler)
            handlers.setdefault(f"/api/v1{endpoint.path}", {})[endpoint.method] = (endpoint.role, checked)
        return handlers

    def _selected_sources(self, collect: list[str], exclude: list[str]) -> frozenset[str] | None:
        """Return the sources that a scrape selects; None for all."""
        if collect and exclude:
            raise HTTPException(400, "collect[] and exclude[] cannot be combined")
        unknown = [name for name in (*collect, *exclude) if name not in self._sources]
        if unknown:
            raise HTTPException(400, f"no collector {unknown[0]!r}; use one of {', '.join(sorted(self._sources))}")
        if not collect and not exclude:
            return None
        return frozenset(collect) or self._sources - set(exclude)


def _checking_names(endpoint: Endpoint, handler: Handler) -> Handler:
    """Return a handler that refuses parameters which the endpoint does not have: a typo must not select everything."""
    inside = set(re.findall(r"{(\w+)}", endpoint.path))
    names = {one.name for one in parameters(endpoint.parameters)} - inside if endpoint.parameters else set()

    async def answer(request: Request) -> Response:
        for name in request.query_params:
            if name not in names:
                known = f"there are {', '.join(sorted(names))}" if names else "there are none"
                raise HTTPException(400, f"{name[:SHOWN]}: no such parameter{near_name(name, names, known)}")
        return await handler(request)

    return answer


class _ApiRoute(Route):
    """A route that matches the percent-encoded path, so that an encoded slash in an id does not split the path.

    It answers all methods of its path: otherwise a refusal (405) would not list them all. Each method needs a role.
    """

    def __init__(self, path: str, handlers: Mapping[str, tuple[Role, Handler]]) -> None:
        async def answer(request: Request) -> Response:
            needed, handler = handlers["GET" if request.method == "HEAD" else request.method]
            return role_error(request.scope, needed) or await handler(request)

        # Neither files that are compressed already nor the stream, whose events must not wait in a buffer.
        packed = [] if path.endswith(("{file}", "/stream")) else [Middleware(GZipMiddleware, 1024, compresslevel=1)]
        super().__init__(path, answer, methods=list(handlers), middleware=packed)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        # ASGI's `path` is decoded already, so that a slash in an id would look like a separator.
        raw = scope.get("raw_path") or quote(scope["path"]).encode()
        match, child_scope = super().matches({**scope, "path": raw.partition(b"?")[0].decode("ascii", "replace")})
        if match is not Match.NONE:
            child_scope["path_params"] = {name: unquote(text) for name, text in child_scope["path_params"].items()}
        return match, child_scope


async def _proven(alert: Mapping[str, Any]) -> str:
    """Return the verdict on a run that hangs, if no process of it does anything for some seconds; else an empty text."""
    import psutil  # most daemons are never asked

    from trackside_daemon.captures.hang.proof import HangProof

    pids = (alert["evidence"].get("hang") or {}).get("pids", {}).values()
    proof = HangProof(alert, {pid: psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)})
    if proof.text:
        await asyncio.sleep(STILL_SECONDS)
    return proof.text if proof.holds(STILL_SECONDS) else ""


async def _http_error(request: Request, problem: Exception) -> Response:
    if not isinstance(problem, HTTPException):
        raise problem
    if problem.status_code == 404 and (page := dashboard.lost(request)) is not None:
        return page
    reason = REASONS.get(problem.status_code, "error")
    return error_response(problem.status_code, reason, problem.detail, dict(problem.headers or {}))
