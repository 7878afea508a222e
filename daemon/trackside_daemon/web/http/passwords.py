"""Password checks of basic authentication with bcrypt."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

Item = TypeVar("Item")
PASSWORD_BYTES = 72  # bytes of a password that bcrypt uses

# Passwords of one address and user name that wait for a check, and of all. The check of one takes about 0.2 s.
MAX_WAITING = 8
MAX_WAITING_TOTAL = 64


class FullError(Exception):
    """The item has no place in the queue."""


class Source(NamedTuple):
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

    def put(self, source: Source, item: Item) -> Item | None:
        """Add an item; return the one that lost its place to it, if any.

        Raises:
            FullError: There is no place: too many items of its source wait, or of its address and none has fewer.
        """
        own = self._waiting.get(source.address, {}).get(source.user, ())
        if len(own) >= self._each:
            raise FullError
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

    def _displace(self, source: Source) -> Item:
        """Remove and return the newest item of the user with most items, of the address with most items."""
        address = max(self._waiting, key=lambda name: sum(map(len, self._waiting[name].values())))
        users = self._waiting[address]
        user = max(users, key=lambda name: len(users[name]))
        if address == source.address and len(users[user]) <= len(users.get(source.user, ())) + 1:
            raise FullError
        item = users[user].pop()
        if not users[user]:
            del users[user]
        if not users:
            del self._waiting[address]
        self._size -= 1
        return item


class PasswordQueueFullError(Exception):
    """The limit of waiting passwords is reached."""


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
            PasswordQueueFullError: Too many passwords wait for a check.
        """
        known_hash = users.get(user)
        hashed = known_hash or _dummy_hash(users)
        digest = self._digest(hashed, user, password)
        if known_hash and self._matches_cache(user, digest):
            return True
        check = _PendingCheck(asyncio.get_running_loop().create_future(), password, hashed)
        self._enqueue(check, Source(address, user))
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

    def _enqueue(self, check: _PendingCheck, source: Source) -> None:
        try:
            displaced = self._waiting.put(source, check)
        except FullError:
            raise PasswordQueueFullError from None
        if displaced is not None and not displaced.result.done():
            displaced.result.set_exception(PasswordQueueFullError())
        if not self._checking:
            self._check_next()

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
