"""Who may ask: the Host header and the token, before any page is reached."""

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
CREDENTIALS = "trackside.credentials"
"""Where `Access` leaves whether a request came with credentials of the web configuration."""


def error(status: int, reason: str, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """An answer as every error of this server looks."""
    return JSONResponse({"error": {"reason": reason, "message": message}}, status, headers)


class Token:
    """The secret that opens the API, made anew at each start and readable by this user alone.

    Args:
        path: The file that our commands read it from.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.value = secrets.token_urlsafe(24)
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(self.value + "\n")

    def opens(self, authorization: str) -> bool:
        """Whether an Authorization header holds it, as ``Bearer TOKEN``."""
        scheme, _, given = authorization.partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self.value.encode())

    def remove(self) -> None:
        """Take the file away."""
        self.path.unlink(missing_ok=True)


class Guard:
    """Lets through what may pass.

    Reading ``/metrics`` and ``/-/…`` always may; the rest only under one of our own names, and the API with the token.
    Credentials of the web configuration stand for both: a browser sends them to the name alone that it has them for. It
    sends them also when another site has it ask, so with them nothing is changed at such a site's wish.

    Args:
        app: What is guarded.
        token: Opens ``/api``.
        hosts: Names that the Host header may have, beside this machine's own; ports after them do not matter.
        public_read: The API may be read without the token.
    """

    def __init__(self, app: ASGIApp, *, token: Token, hosts: Collection[str], public_read: bool) -> None:
        self._app = app
        self._token = token
        self._hosts = LOCAL | set(map(_name, hosts)) - {""}
        self._public_read = public_read

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass the request on."""
        refusal = self._refuse(scope) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send)

    def _refuse(self, scope: Scope) -> JSONResponse | None:
        path = scope["path"]
        if (path == "/metrics" or path.startswith("/-/")) and scope["method"] in READING:
            return None
        headers = Headers(scope=scope)
        if scope.get(CREDENTIALS):
            foreign = scope["method"] not in READING and not _is_own_wish(scope, headers)
            return error(403, "cross_site", "another site's page may change nothing here") if foreign else None
        host = _name(headers.get("host", ""))
        if host not in self._hosts:
            return error(421, "host", f"no page here for the host {host!r}; to allow it, set web.allowed-hosts")
        if not path.startswith("/api/") or (self._public_read and scope["method"] in READING):
            return None
        if self._token.opens(headers.get("authorization", "")):
            return None
        message = f"the API needs 'Authorization: Bearer TOKEN' with the token in {self._token.path}"
        return error(401, "token", message, {"WWW-Authenticate": "Bearer"})


def _is_own_wish(scope: Scope, headers: Headers) -> bool:
    """Whether a page of ours asks, or no page of a browser."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is None or origin.lower() == f"{scope['scheme']}://{headers.get('host', '')}".lower()


def _name(host: str) -> str:
    """A host without its port, in lower case."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return (host.partition(":")[0] if host.count(":") == 1 else host).lower()
