"""Password checks of basic authentication with bcrypt."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

PASSWORD_BYTES = 72  # bytes of a password that bcrypt uses

# Passwords waiting for a check or being checked; the limit keeps endless guesses from starving other users.
MAX_WAITING = 8


class PasswordQueueFullError(Exception):
    """The limit of waiting passwords is reached."""


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
        self._waiting = 0

    def is_cached(self, users: Mapping[str, str], user: str, password: bytes) -> bool:
        """Return True when the password passed before and the user's hash is unchanged; runs no bcrypt."""
        hashed = users.get(user)
        return hashed is not None and self._matches_cache(user, self._digest(hashed, user, password))

    async def verify(self, users: Mapping[str, str], user: str, password: bytes) -> bool:
        """Return True when the password is correct; an unknown user takes the same time.

        Args:
            users: Bcrypt hashes by user name.
            user: A name, known or not.
            password: The password from the request.

        Raises:
            PasswordQueueFullError: Too many passwords wait for a check.
        """
        known_hash = users.get(user)
        hashed = known_hash or _dummy_hash(users)
        digest = self._digest(hashed, user, password)
        if known_hash and self._matches_cache(user, digest):
            return True
        if self._waiting >= MAX_WAITING:
            raise PasswordQueueFullError
        self._waiting += 1
        check = asyncio.get_running_loop().run_in_executor(self._thread, _check, password, hashed)
        check.add_done_callback(self._finish_check)
        passed = await check
        if not known_hash or not passed:
            return False
        self._cache = {name: entry for name, entry in self._cache.items() if name in users} | {user: digest}
        return True

    def close(self) -> None:
        """Stop the checks."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _matches_cache(self, user: str, digest: bytes) -> bool:
        return hmac.compare_digest(self._cache.get(user, b""), digest)

    def _finish_check(self, _: object) -> None:
        self._waiting -= 1

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
