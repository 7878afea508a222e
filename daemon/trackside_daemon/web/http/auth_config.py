"""Who may ask by the web configuration: what stands before all pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders

from trackside_daemon.web.http.auth_token import CREDENTIALS, error
from trackside_daemon.web.http.passwords import BusyError, Passwords, basic
from trackside_daemon.web.http.rate_limit import TokenBucket

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from trackside_daemon.web.http.config_file import ConfigFile, InForce

IN_FORCE = "trackside.web-config"
"""Where the server leaves what it has let a connection in by."""

REFUSED = "trackside.refused"
"""Where the server finds that a request was, which ends its connection."""

_CLOSE = {"Connection": "close"}


class Access:
    """Bounds the rate, sets headers, and wants a password where there are users, on every path.

    Who is refused has his connection closed, so that he takes no place of those who may ask.

    Args:
        app: What is behind it.
        file: The web configuration.
    """

    def __init__(self, app: ASGIApp, file: ConfigFile) -> None:
        self._app = app
        self._file = file
        self._passwords = Passwords()
        limit = file.current().config.rate_limit
        self._bucket = TokenBucket(limit.interval, limit.burst) if limit.interval else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        now: InForce = scope.get(IN_FORCE) or self._file.current()
        send = _with_headers(send, now.config.http_server_config.headers)
        refusal = await self._refuse(scope, now)
        scope[REFUSED] = refusal is not None
        scope[CREDENTIALS] = now.config.authenticates
        await (refusal or self._app)(scope, receive, send)

    def close(self) -> None:
        """Check no more passwords."""
        self._passwords.close()

    async def _refuse(self, scope: Scope, now: InForce) -> Response | None:
        users = now.config.basic_auth_users
        given = basic(Headers(scope=scope).get("authorization", "")) if users else None
        if given is not None and self._passwords.remembers(users, *given):
            return None  # before the rate, which strangers use up
        if self._bucket is not None and not self._bucket.take():
            return error(429, "rate_limit", "more requests than rate_limit of the web configuration allows", _CLOSE)
        if not users:
            return None
        try:
            if given is not None and await self._passwords.right(users, *given):
                return None
        except BusyError:
            return error(429, "passwords", "too many passwords wait to be checked; ask again", _CLOSE)
        challenge = {"WWW-Authenticate": 'Basic realm="trackside", charset="UTF-8"', **_CLOSE}
        return error(401, "credentials", "a user and a password of the web configuration are needed", challenge)


def _with_headers(send: Send, headers: Mapping[str, str]) -> Send:
    """Has every answer carry them, in the place of a page's own."""
    if not headers:
        return send

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(headers)
        await send(message)

    return sending
