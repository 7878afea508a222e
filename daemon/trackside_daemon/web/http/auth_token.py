"""The API token, and the middleware that checks the Host header and the token before any endpoint runs."""

from __future__ import annotations

import hmac
import os
import secrets
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.responses import JSONResponse

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from starlette.types import ASGIApp, Receive, Scope, Send

READING = frozenset(("GET", "HEAD"))
LOCAL = frozenset(("localhost", "127.0.0.1", "::1"))
CREDENTIALS = "trackside.credentials"  # ASGI scope key: true when the web configuration authenticated the request


def error_response(status: int, reason: str, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """Return an error response in the server's JSON error format."""
    return JSONResponse({"error": {"reason": reason, "message": message}}, status, headers)


class Token:
    """The secret that opens the API, new at each start and readable only by this user.

    Args:
        path: The file from which trackside commands read it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.value = secrets.token_urlsafe(24)
        # With O_EXCL below, neither a link nor an open descriptor of the old file can get the new token.
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(self.value + "\n")

    def matches(self, authorization: str) -> bool:
        """Return True when an Authorization header contains the token, as ``Bearer TOKEN``."""
        scheme, _, given = authorization.partition(" ")
        # Takes the same time wherever the texts differ, so that it does not reveal the token byte by byte.
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self.value.encode())

    def remove(self) -> None:
        """Delete the file."""
        self.path.unlink(missing_ok=True)


class TokenMiddleware:
    """Middleware that checks the Host header and the token.

    Reading ``/metrics`` and ``/-/…`` is always permitted. All other paths require one of the daemon's host names, and
    the API also requires the token. Credentials of the web configuration replace both checks, because a browser sends
    them only to the host name for which it stores them. A browser also sends them when another site triggers the
    request, so requests from other sites must not change anything.

    Args:
        app: The application to protect.
        token: The token that opens ``/api``.
        hosts: Names that the Host header may contain in addition to localhost; ports are ignored.
        public_read: True when reading the API needs no token.
    """

    def __init__(self, app: ASGIApp, *, token: Token, hosts: Collection[str], public_read: bool) -> None:
        self._app = app
        self._token = token
        self._hosts = LOCAL | set(map(_name, hosts)) - {""}
        self._public_read = public_read

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, or pass it on to the application."""
        refusal = self._refuse(scope) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send)

    def _refuse(self, scope: Scope) -> JSONResponse | None:
        path = scope["path"]
        if (path == "/metrics" or path.startswith("/-/")) and scope["method"] in READING:
            return None
        headers = Headers(scope=scope)
        if scope.get(CREDENTIALS):
            foreign = scope["method"] not in READING and not _is_same_site(scope, headers)
            message = "a page of another site must not change anything here"
            return error_response(403, "cross_site", message) if foreign else None
        host = _name(headers.get("host", ""))
        if host not in self._hosts:
            # Against DNS rebinding: a foreign page's host name may point to this address.
            return error_response(421, "host", f"the host {host!r} is not served; to allow it, set web.allowed-hosts")
        if not path.startswith("/api/") or (self._public_read and scope["method"] in READING):
            return None
        if self._token.matches(headers.get("authorization", "")):
            return None
        message = f"the API requires 'Authorization: Bearer TOKEN' with the token in {self._token.path}"
        return error_response(401, "token", message, {"WWW-Authenticate": "Bearer"})


def _is_same_site(scope: Scope, headers: Headers) -> bool:
    """Return True when the request comes from the dashboard or from no web page."""
    # Pages cannot set this header. Browsers that do not send it send Origin with requests that change something.
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is None or origin.lower() == f"{scope['scheme']}://{headers.get('host', '')}".lower()


def _name(host: str) -> str:
    """Return a host without its port, in lower case."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return (host.partition(":")[0] if host.count(":") == 1 else host).lower()
