"""Names of users, from wherever this machine has them: that may be a directory server, which may not answer."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from trackside_daemon.linux.users import name_of

if TYPE_CHECKING:
    from collections.abc import Callable

AGAIN_SECONDS = 300.0
"""Until a user is asked for once more who had no name: the server may have been away."""


class Users:
    """Looks users up, one after another, in a thread that nobody waits for.

    Args:
        clock: Seconds of a clock that only goes forward.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._names: dict[int, str] = {}
        self._asked: dict[int, float] = {}
        self._wanted: deque[int] = deque()
        self._lock = threading.Lock()
        self._asking = False

    def name(self, uid: int) -> str:
        """The user's name; the number where there is none, or none yet."""
        if uid in self._names:
            return self._names[uid]
        now = self._clock()
        if now - self._asked.get(uid, float("-inf")) >= AGAIN_SECONDS:
            self._asked[uid] = now
            self._want(uid)
        return str(uid)

    def _want(self, uid: int) -> None:
        with self._lock:
            self._wanted.append(uid)
            if self._asking:
                return
            self._asking = True
        threading.Thread(target=self._ask, name="trackside-users", daemon=True).start()

    def _ask(self) -> None:
        """Until nobody is wanted any more."""
        while True:
            with self._lock:
                if not self._wanted:
                    self._asking = False
                    return
                uid = self._wanted.popleft()
            if found := name_of(uid):
                self._names[uid] = found
