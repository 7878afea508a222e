"""Names of users, also resolved in the background, because a directory server that holds them may not answer."""

import pwd
import threading
import time
from collections import deque
from collections.abc import Callable

RETRY_SECONDS = 300.0  # time until the next lookup of a user without a name: the server may have been unreachable


def user_name(uid: int) -> str:
    """Return a user's name, empty when the machine has none; blocks while a directory server does not answer."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return ""


class UserNames:
    """User names by id, resolved one after another in a thread.

    Args:
        clock: Seconds of the monotonic clock.
        patience: Seconds for which a user's first lookup may be waited for.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, patience: float = 0.0) -> None:
        self._clock = clock
        self._patience = patience
        self._names: dict[int, str] = {}
        self._requested_at: dict[int, float] = {}
        self._queue: deque[int] = deque()
        self._lock = threading.Lock()
        self._running = False

    def name(self, uid: int) -> str:
        """Return the user's name; the number where there is no name, or none yet."""
        # No lock: entries are only added, each by one assignment, which is atomic in CPython.
        if uid in self._names:
            return self._names[uid]
        now = self._clock()
        if now - self._requested_at.get(uid, float("-inf")) >= RETRY_SECONDS:
            self._requested_at[uid] = now
            self._request(uid)
        return self._names.get(uid, str(uid))

    def _request(self, uid: int) -> None:
        with self._lock:
            self._queue.append(uid)
            if self._running:
                return
            self._running = True
        thread = threading.Thread(target=self._run, name="trackside-users", daemon=True)
        thread.start()
        thread.join(self._patience)

    def _run(self) -> None:
        """Resolve users until the queue is empty."""
        while True:
            with self._lock:
                if not self._queue:
                    self._running = False
                    return
                uid = self._queue.popleft()
            if name := user_name(uid):
                self._names[uid] = name
