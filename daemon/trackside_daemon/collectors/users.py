"""Names of users, from wherever this machine has them: that may be a directory server, which may not answer."""

from __future__ import annotations

import pwd
import threading
from contextlib import suppress

PATIENCE_SECONDS = 0.05
"""What /etc/passwd knows is there by then; what a server knows may come later, and is shown from then on."""


class Users:
    """Looks each user up once, in a thread that nobody has to wait for."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}

    def name(self, uid: int) -> str:
        """The user's name; the number where there is none, or none yet."""
        if uid not in self._names:
            self._names[uid] = str(uid)
            asking = threading.Thread(target=self._ask, args=(uid,), name="trackside-user", daemon=True)
            asking.start()
            asking.join(PATIENCE_SECONDS)
        return self._names[uid]

    def _ask(self, uid: int) -> None:
        with suppress(KeyError):
            self._names[uid] = pwd.getpwuid(uid).pw_name
