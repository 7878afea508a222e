"""The API token, and the middleware that checks the Host header and the token before any endpoint runs."""

import base64
import hmac
import os
import re
import secrets
import socket
import stat
import time
from collections.abc import Collection
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trackside_daemon.web.http.roles import ROLE, ROLES, Role, permits

STORED = "api.token"  # the file in the directory of the history that keeps the token
READING = frozenset(("GET", "HEAD"))
LOCAL = frozenset(("localhost", "127.0.0.1", "::1"))
_HOST = re.compile(r"(?:\[([\da-f:.]+(?:%[\w.-]+)?)\]|([^\s:@/\[\]]*))(?::\d{0,5})?", re.ASCII | re.IGNORECASE)
MAX_KEEP_SECONDS = 30 * 86400.0  # longest time for which a rotation keeps the old token


def error_response(status: int, reason: str, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """Return an error response in the server's JSON error format."""
    return JSONResponse({"error": {"reason": reason, "message": message}}, status, headers)


def token_of_role(token: str, role: Role) -> str:
    """Return the token of a role, which is made from the daemon's own token, that of ``admin``."""
    digest = hmac.digest(token.encode(), f"trackside {role}".encode(), "sha256")
    return token if role == "admin" else base64.urlsafe_b64encode(digest[:24]).decode()


class Token:
    """The secret that opens the API, readable only by this user.

    Args:
        path: The file from which trackside commands read it, while the daemon runs.
        stored: The file that keeps it for the next start, so that open dashboards continue, and the old one while it lasts.

    Raises:
        OSError: *path* cannot be written.
    """

    def __init__(self, path: Path, stored: Path) -> None:
        self.path = path
        self._stored = stored
        self.value, self._old, self._old_until = _read(stored)
        if not self.value:
            self.value = secrets.token_urlsafe(24)
            # On a full disk, the daemon starts all the same, with a token for this time.
            with suppress(OSError):
                write_private(stored, self.value)
        write_private(path, self.value)

    def rotate(self, keep: float = 0.0) -> None:
        """Replace the token by a new one; the old one opens nothing any more once *keep* seconds are over.

        Raises:
            OSError: A file cannot be written, so the old token stays.
        """
        value, until = secrets.token_urlsafe(24), time.time() + keep
        write_private(self._stored, f"{value} {self.value} {until:.0f}" if keep else value)
        write_private(self.path, value)
        self.value, self._old, self._old_until = value, self.value, until if keep else 0.0

    def role(self, authorization: str) -> Role | None:
        """Return the role of the token that an Authorization header contains, as ``Bearer TOKEN``; None without a valid one."""
        scheme, _, given = authorization.partition(" ")
        found: Role | None = None
        for token in (self.value, self._old if time.time() < self._old_until else ""):
            for role in ROLES if token else ():
                # Takes the same time wherever the texts differ, so that it does not reveal the token byte by byte.
                if hmac.compare_digest(given.strip().encode(), token_of_role(token, role).encode()):
                    found = role
        return found if scheme.lower() == "bearer" else None

    def remove(self) -> None:
        """Delete the file."""
        self.path.unlink(missing_ok=True)


def _read(path: Path) -> tuple[str, str, float]:
    """Return the token in a file, the old one, and the Unix time until which that one is valid.

    All are empty without a file that this user alone could have written and read.
    """
    # O_NONBLOCK: a FIFO would block the daemon.
    with (
        suppress(OSError, UnicodeDecodeError),
        os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "r") as file,
    ):
        status = os.fstat(file.fileno())
        is_private = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
        text = file.read(100).strip() if is_private and status.st_nlink == 1 else ""
        if match := re.fullmatch(r"([\w-]{32})(?: ([\w-]{32}) (\d{1,12}))?", text, re.ASCII):
            return match[1], match[2] or "", float(match[3] or 0)
    return "", "", 0.0


def write_private(path: Path, text: str) -> None:
    """Write a line to a file that only this user can read; neither a link nor an open descriptor of an old one gets it."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text + "\n")


class TokenMiddleware:
    """Middleware that checks the Host header, the token and the role; an endpoint of the API may need a higher role.

    Reading ``/metrics`` and ``/-/…`` needs no token. All but the probes requires a host name of the daemon; the API
    and all methods that change something also require the token. Credentials of the web configuration replace both checks,
    because a browser sends them only to the host name for which it stores them. A browser also sends them when another
    site triggers the request, so requests from other sites must not change anything.

    Args:
        app: The application to protect.
        token: The token that opens ``/api``.
        hosts: Names that the Host header may contain in addition to localhost; ports are ignored.
        public_read: True when reading the API needs no token.
        any_host: True when ``/metrics`` answers under any name, as it must where other machines scrape it. Otherwise it
            answers under an IP address, this machine's name or one of *hosts*.
    """

    def __init__(
        self, app: ASGIApp, *, token: Token, hosts: Collection[str], public_read: bool, any_host: bool = False
    ) -> None:
        self._app = app
        self._token = token
        self._hosts = LOCAL | {host.lower() if _is_address(host) else _name(host) or "" for host in hosts} - {""}
        self._public_read = public_read
        self._any_host = any_host
        machine = socket.gethostname().lower()
        self._metrics_hosts = self._hosts | {machine, machine.partition(".")[0]}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, or pass it on to the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        await (self._refuse(scope) or self._app)(scope, receive, _with_defaults(send, scope))

    def _refuse(self, scope: Scope) -> JSONResponse | None:
        path = scope["path"]
        changes = scope["method"] not in READING
        headers = Headers(scope=scope)
        foreign = changes and not _is_same_site(scope, headers)
        message = "a page of another site must not change anything here"
        cross_site = error_response(403, "cross_site", message) if foreign else None
        is_metrics = (path == "/metrics" or path.startswith("/-/run/")) and not changes
        if path.startswith("/-/") and not (changes or is_metrics):
            return None
        is_api = path.startswith("/api/")
        if role := scope.get(ROLE):
            needed: Role = "metrics" if is_metrics else "admin" if changes and not is_api else "read"
            return cross_site or role_error(scope, needed)
        given = headers.get("host", "")
        host = _name(given)
        if not (self._serves_metrics(host) if is_metrics else host in self._hosts):
            # Against DNS rebinding: a foreign page's host name may point to this address.
            return error_response(421, "host", f"the host {given!r} is not served; to allow it, set web.allowed-hosts")
        if is_metrics or not (changes or is_api):
            return None
        role = scope[ROLE] = self._token.role(headers.get("authorization", ""))
        if role is None and self._public_read and not changes:
            role = scope[ROLE] = "read"
        if role is not None:
            return cross_site or role_error(scope, "read" if is_api else "admin")
        about = "the API" if is_api else "a request that changes something"
        message = f"{about} requires 'Authorization: Bearer TOKEN' with the token in {self._token.path}"
        return error_response(401, "token", message, {"WWW-Authenticate": "Bearer"})

    def _serves_metrics(self, host: str | None) -> bool:
        # A rebound name is always a name: pages cannot make a browser send an address, or no host, of their choice.
        return self._any_host or host == "" or host in self._metrics_hosts or (host is not None and _is_address(host))


def role_error(scope: Scope, needed: Role) -> JSONResponse | None:
    """Return the refusal of a request whose role does not suffice; None if it does."""
    if permits(role := scope.get(ROLE), needed):
        return None
    return error_response(
        403, "role", f"{scope['method']} {scope['path']} needs the role {needed}, and yours is {role}"
    )


def _with_defaults(send: Send, scope: Scope) -> Send:
    """Return a `send` that adds headers which the response does not set itself."""

    async def send_with_defaults(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.setdefault("X-Content-Type-Options", "nosniff")  # names of runs must not become a page
            if scope["path"].startswith("/api/"):
                headers.setdefault("X-Trackside-Role", scope.get(ROLE) or "")  # the page hides what the role may not do
                headers.setdefault("Cache-Control", "no-store")  # caches do not know the token
        await send(message)

    return send_with_defaults


def _is_same_site(scope: Scope, headers: Headers) -> bool:
    """Return True when the request comes from the dashboard or from no web page."""
    # Pages cannot set this header. Browsers that do not send it send Origin with requests that change something.
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is None or origin.lower() == f"{scope['scheme']}://{headers.get('host', '')}".lower()


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _name(host: str) -> str | None:
    """Return a host without its port, in lower case; None if it is not ``NAME``, ``ADDRESS`` or ``[ADDRESS]``, with a port or not."""
    match = _HOST.fullmatch(host)
    return None if match is None else (match[1] or match[2]).lower()
