"""The middleware that applies the web configuration to every request: rate limit, headers, basic authentication."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders

from trackside_daemon.web.http.auth_token import CREDENTIALS, error_response
from trackside_daemon.web.http.passwords import PasswordQueueFullError, Passwords, parse_basic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from trackside_daemon.web.http.config_file import ActiveConfig, ConfigFile

# ASGI scope key: the `ActiveConfig` under which the server accepted the connection.
ACTIVE_CONFIG = "trackside.web-config"

# ASGI scope key: true when the request was refused, after which the server closes the connection.
REFUSED = "trackside.refused"

_CLOSE = {"Connection": "close"}


class TokenBucket:
    """A token bucket: *burst* tokens at most, and one more each *interval*.

    Args:
        interval: Seconds.
        burst: How many requests may come at once.
        clock: Returns seconds from any starting point.
    """

    def __init__(self, interval: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = interval
        self._burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._filled = clock()

    def try_acquire(self) -> bool:
        """Remove a token and return True; return False when the bucket is empty."""
        # No lock is needed: all requests are checked in the event loop's thread.
        now = self._clock()
        self._tokens = min(float(self._burst), self._tokens + (now - self._filled) / self._interval)
        self._filled = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class WebConfigMiddleware:
    """Middleware that limits the rate, sets the configured headers and requires a password when users are configured.

    It covers every path. The connection of a refused request is closed, so that it leaves room for permitted clients.

    Args:
        app: The application to protect.
        file: The web configuration.
    """

    def __init__(self, app: ASGIApp, file: ConfigFile) -> None:
        self._app = app
        self._file = file
        self._passwords = Passwords()
        limit = file.current().config.rate_limit
        self._bucket = TokenBucket(limit.interval, limit.burst) if limit.interval else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, or pass it on to the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        active: ActiveConfig = scope.get(ACTIVE_CONFIG) or self._file.current()
        send = _with_headers(send, active.config.http_server_config.headers)
        refusal = await self._refuse(scope, active)
        scope[REFUSED] = refusal is not None
        scope[CREDENTIALS] = active.config.authenticates
        await (refusal or self._app)(scope, receive, send)

    def close(self) -> None:
        """Stop the password checks."""
        self._passwords.close()

    async def _refuse(self, scope: Scope, active: ActiveConfig) -> Response | None:
        users = active.config.basic_auth_users
        given = parse_basic(Headers(scope=scope).get("authorization", "")) if users else None
        # Checked before the rate limit, which strangers can use up.
        if given is not None and self._passwords.is_cached(users, *given):
            return None
        if self._bucket is not None and not self._bucket.try_acquire():
            return error_response(429, "rate_limit", "the request exceeds rate_limit of the web configuration", _CLOSE)
        if not users:
            return None
        try:
            address = (scope.get("client") or ("",))[0]
            if given is not None and await self._passwords.verify(users, *given, address):
                return None
        except PasswordQueueFullError:
            return error_response(429, "passwords", "too many passwords are waiting to be checked; try again", _CLOSE)
        challenge = {"WWW-Authenticate": 'Basic realm="trackside", charset="UTF-8"', **_CLOSE}
        message = "a user name and password from the web configuration are required"
        return error_response(401, "credentials", message, challenge)


def _with_headers(send: Send, headers: Mapping[str, str]) -> Send:
    """Return a `send` that sets the headers on every response and replaces those of the same name."""
    if not headers:
        return send

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(headers)
        await send(message)

    return send_with_headers
