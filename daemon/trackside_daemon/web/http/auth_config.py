"""The middleware that applies the web configuration to every request: rate limit, headers, and passwords checked with bcrypt."""

import asyncio
import base64
import binascii
import hmac
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Generic, NamedTuple, TypeVar

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trackside_daemon.web.http.auth_token import READING, error_response
from trackside_daemon.web.http.config_file import ActiveConfig, ConfigFile
from trackside_daemon.web.http.roles import ROLE

Item = TypeVar("Item")
PASSWORD_BYTES = 72  # bytes of a password that bcrypt uses

# Passwords of one address and user name that wait for a check, and of all. The check of one takes about 0.2 s.
MAX_WAITING = 8
MAX_WAITING_TOTAL = 64
# ASGI scope key: the `ActiveConfig` under which the server accepted the connection.
ACTIVE_CONFIG = "trackside.web-config"

# ASGI scope key: true when the request was refused or probes without a password, after which the server closes the connection.
REFUSED = "trackside.refused"

# Paths for probes, such as kubelet's, which cannot read a password; they say whether the daemon works, and nothing else.
PROBES = frozenset(("/-/healthy", "/-/ready"))

_CLOSE = {"Connection": "close"}


class QueueFullError(Exception):
    """The item has no place in the queue."""


class RequestOrigin(NamedTuple):
    """The origin of an item: the client's address, and the user name of its request."""

    address: str
    user: str


class FairQueue(Generic[Item]):
    """A queue in which many items of one source delay the others by one turn each, and never keep them out.

    Args:
        each: How many items of a source may wait.
        total: How many items may wait.
    """

    def __init__(self, each: int, total: int) -> None:
        self._each = each
        self._total = total
        self._size = 0
        # By address and by user. Whoever is first has the next turn, and goes to the end after it.
        self._waiting: dict[str, dict[str, deque[Item]]] = {}

    def put(self, source: RequestOrigin, item: Item) -> Item | None:
        """Add an item; return the one that lost its place to it, if any.

        Raises:
            QueueFullError: There is no place: too many items of its source wait, or of its address and none has fewer.
        """
        own = self._waiting.get(source.address, {}).get(source.user, ())
        if len(own) >= self._each:
            raise QueueFullError
        displaced = self._displace(source) if self._size >= self._total else None
        self._waiting.setdefault(source.address, {}).setdefault(source.user, deque()).append(item)
        self._size += 1
        return displaced

    def get(self) -> Item | None:
        """Remove and return the next item; None if the queue is empty."""
        if not self._waiting:
            return None
        address, users = next(iter(self._waiting.items()))
        user = next(iter(users))
        items = users.pop(user)
        item = items.popleft()
        if items:
            users[user] = items
        del self._waiting[address]
        if users:
            self._waiting[address] = users
        self._size -= 1
        return item

    def _displace(self, source: RequestOrigin) -> Item:
        """Remove and return the newest item of the user with most items, of the address with most items."""
        address = max(self._waiting, key=lambda name: sum(map(len, self._waiting[name].values())))
        users = self._waiting[address]
        user = max(users, key=lambda name: len(users[name]))
        if address == source.address and len(users[user]) <= len(users.get(source.user, ())) + 1:
            raise QueueFullError
        item = users[user].pop()
        if not users[user]:
            del users[user]
        if not users:
            del self._waiting[address]
        self._size -= 1
        return item


class _PendingCheck(NamedTuple):
    """A password that waits for its check."""

    result: asyncio.Future[bool]
    password: bytes
    hashed: str


def parse_basic(authorization: str) -> tuple[str, bytes] | None:
    """Return the user and the password of an Authorization header; None when it has none."""
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(given.strip(), validate=True).partition(b":")
        return (user.decode(), password) if colon else None
    except (binascii.Error, ValueError):
        return None


class Passwords:
    """Checks passwords one at a time in a thread, since bcrypt is slow on purpose; caches correct ones as a keyed digest."""

    def __init__(self) -> None:
        self._key = os.urandom(32)  # exists only in this process
        # Each user has one entry, so guesses evict nothing. A new hash for a user changes the digest and so invalidates it.
        self._cache: dict[str, bytes] = {}
        self._thread = ThreadPoolExecutor(1, "trackside-bcrypt")
        self._waiting: FairQueue[_PendingCheck] = FairQueue(MAX_WAITING, MAX_WAITING_TOTAL)
        self._checking = False

    def is_cached(self, users: Mapping[str, str], user: str, password: bytes) -> bool:
        """Return True when the password passed before and the user's hash is unchanged; runs no bcrypt."""
        hashed = users.get(user)
        return hashed is not None and self._matches_cache(user, self._digest(hashed, user, password))

    async def verify(self, users: Mapping[str, str], user: str, password: bytes, address: str = "") -> bool:
        """Return True when the password is correct; an unknown user takes the same time.

        Args:
            users: Bcrypt hashes by user name.
            user: A name, known or not.
            password: The password from the request.
            address: The client's address. Endless guesses of one address do not keep out the others.

        Raises:
            QueueFullError: Too many passwords wait for a check.
        """
        known_hash = users.get(user)
        hashed = known_hash or _dummy_hash(users)
        digest = self._digest(hashed, user, password)
        if known_hash and self._matches_cache(user, digest):
            return True
        check = _PendingCheck(asyncio.get_running_loop().create_future(), password, hashed)
        displaced = self._waiting.put(RequestOrigin(address, user), check)
        if displaced is not None and not displaced.result.done():
            displaced.result.set_exception(QueueFullError())
        if not self._checking:
            self._check_next()
        passed = await check.result
        if not known_hash or not passed:
            return False
        self._cache = {name: entry for name, entry in self._cache.items() if name in users} | {user: digest}
        return True

    def close(self) -> None:
        """Stop the checks."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _matches_cache(self, user: str, digest: bytes) -> bool:
        return hmac.compare_digest(self._cache.get(user, b""), digest)

    def _check_next(self) -> None:
        """Begin the next check; several would only delay each other."""
        check = self._waiting.get()
        self._checking = check is not None
        if check is None:
            return
        running = check.result.get_loop().run_in_executor(self._thread, _check, check.password, check.hashed)
        running.add_done_callback(lambda finished: self._finish_check(check.result, finished))

    def _finish_check(self, result: asyncio.Future[bool], finished: asyncio.Future[bool]) -> None:
        if not result.done():  # its request may have been cancelled
            if finished.cancelled():
                result.cancel()
            elif (error := finished.exception()) is not None:
                result.set_exception(error)
            else:
                result.set_result(finished.result())
        with suppress(RuntimeError):  # the checks were stopped
            self._check_next()

    def _digest(self, hashed: str, user: str, password: bytes) -> bytes:
        parts = (hashed.encode(), user.encode(), password)
        # The lengths keep parts apart that are equal when joined, such as ab + c and a + bc.
        return hmac.digest(self._key, b"".join(len(part).to_bytes(4, "big") + part for part in parts), "sha256")


def _dummy_hash(users: Mapping[str, str]) -> str:
    """Return a hash that no password matches and that takes as long as the slowest of the users' hashes."""
    cost = max((hashed.split("$")[2] for hashed in users.values()), default="10")
    return f"$2b${cost}${'.' * 53}"


def _check(password: bytes, hashed: str) -> bool:
    import bcrypt  # only for basic authentication

    try:
        # Since version 5, bcrypt rejects longer passwords; before, it ignored the rest.
        return bcrypt.checkpw(password[:PASSWORD_BYTES], hashed.encode())
    except ValueError:  # some versions of bcrypt reject a NUL byte
        return False


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

    It covers every path but `PROBES`. The connection of a refused request is closed, so that it leaves room for permitted clients.
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
        probe = scope["path"] in PROBES and scope["method"] in READING
        unknown = probe and bool(active.config.basic_auth_users)
        send = _with_headers(send, {**active.config.http_server_config.headers, **(_CLOSE if unknown else {})})
        refusal = None if probe else await self._refuse(scope, active)
        scope[REFUSED] = unknown or refusal is not None
        await (refusal or self._app)(scope, receive, send)

    def close(self) -> None:
        """Stop the password checks."""
        self._passwords.close()

    async def _refuse(self, scope: Scope, active: ActiveConfig) -> Response | None:
        users = active.config.basic_auth_users
        if active.config.authenticates and not users:
            scope[ROLE] = "admin"  # whoever has a certificate
        given = parse_basic(Headers(scope=scope).get("authorization", "")) if users else None
        # Checked before the rate limit, which strangers can use up.
        if given is not None:
            scope[ROLE] = active.config.role(given[0])  # which counts only if the password is right
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
        except QueueFullError:
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
