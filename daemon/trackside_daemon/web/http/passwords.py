"""Passwords of basic authentication, checked by bcrypt."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import bcrypt

if TYPE_CHECKING:
    from collections.abc import Mapping

PASSWORD_BYTES = 72
"""What bcrypt looks at."""

MOST_WAITING = 8
"""Passwords that wait for their check or are in it; with guesses without end nobody else's would come to its turn."""


class BusyError(Exception):
    """So many wait that one more is not checked."""


def basic(authorization: str) -> tuple[str, bytes] | None:
    """The user and the password of an Authorization header; None where it has none."""
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(given.strip(), validate=True).partition(b":")
        return (user.decode(), password) if colon else None
    except (binascii.Error, ValueError):
        return None


class Passwords:
    """Says whether a password is right, one at a time and in a thread of its own: bcrypt takes its time on purpose.

    What was right is remembered, by a digest whose key is in this process alone; each user has one place there, so
    guesses push nothing out. With another hash for a user the digest is another.
    """

    def __init__(self) -> None:
        self._key = os.urandom(32)
        self._right: dict[str, bytes] = {}
        self._thread = ThreadPoolExecutor(1, "trackside-bcrypt")
        self._waiting = 0

    def remembers(self, users: Mapping[str, str], user: str, password: bytes) -> bool:
        """Whether it was right before and is so still, which costs no check."""
        known = users.get(user)
        return known is not None and self._knows(user, self._digest(known, user, password))

    async def right(self, users: Mapping[str, str], user: str, password: bytes) -> bool:
        """Whether it is; a user that there is none of takes the same way.

        Args:
            users: Their hashes.
            user: A name, known or not.
            password: As it was given.

        Raises:
            BusyError: Too many wait.
        """
        known = users.get(user)
        hashed = known or _nobody(users)
        digest = self._digest(hashed, user, password)
        if known and self._knows(user, digest):
            return True
        if self._waiting >= MOST_WAITING:
            raise BusyError
        self._waiting += 1
        checking = asyncio.get_running_loop().run_in_executor(self._thread, _check, password, hashed)
        checking.add_done_callback(self._checked)
        passed = await checking
        if not known or not passed:
            return False
        self._right = {name: one for name, one in self._right.items() if name in users} | {user: digest}
        return True

    def close(self) -> None:
        """Check no more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _knows(self, user: str, digest: bytes) -> bool:
        return hmac.compare_digest(self._right.get(user, b""), digest)

    def _checked(self, _: object) -> None:
        self._waiting -= 1

    def _digest(self, hashed: str, user: str, password: bytes) -> bytes:
        parts = (hashed.encode(), user.encode(), password)
        return hmac.digest(self._key, b"".join(len(one).to_bytes(4, "big") + one for one in parts), "sha256")


def _nobody(users: Mapping[str, str]) -> str:
    """A hash of no password, which takes as long as the slowest of the users'."""
    cost = max((one.split("$")[2] for one in users.values()), default="10")
    return f"$2b${cost}${'.' * 53}"


def _check(password: bytes, hashed: str) -> bool:
    try:
        return bcrypt.checkpw(password[:PASSWORD_BYTES], hashed.encode())
    except ValueError:  # a NUL, for some versions
        return False
