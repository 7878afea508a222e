"""Checks whether the process of a client still exists, as far as this machine can observe it."""

from pathlib import Path

from trackside.environment.identity import boot_id, stat
from trackside.wire import Identity

# After this silence its process is checked. A client sends a message each second; one of many ranks may send none for longer.
SILENCE_SECONDS = 3.0
REMOTE_SILENCE_SECONDS = 30.0  # a client on another machine is lost after this silence


class Liveness:
    """Finds processes by pid and start time, for clients of this machine and its current boot.

    Args:
        proc: Where the kernel's process files are.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._boot = boot_id(proc)

    def is_lost(self, identity: Identity, silence: float, *, elsewhere: bool = False) -> bool:
        """Return whether a client that has been silent for *silence* seconds is gone; *elsewhere* its pid means nothing."""
        if silence < SILENCE_SECONDS:
            return False
        gone = None if elsewhere else self.is_gone(identity)
        return silence >= REMOTE_SILENCE_SECONDS if gone is None else gone

    def is_here(self, identity: Identity) -> bool:
        """Return whether it is a process of this machine, also in another container."""
        return bool(self._boot) and identity.boot == self._boot

    def is_of(self, identity: Identity, owner: str) -> bool:
        """Return whether the process is that of an owner ``uid:NUMBER``: a client may name any pid."""
        try:
            uid = (self._proc / str(identity.pid)).stat().st_uid
        except OSError:
            return False
        return owner == f"uid:{uid}" and self.is_gone(identity) is False

    def is_gone(self, identity: Identity) -> bool | None:
        """Return whether the process has ended (/proc/PID/stat, fields 3 and 22); None for another machine's."""
        if identity.boot != self._boot or not identity.start:
            return None
        try:
            fields = stat(self._proc, identity.pid)
        except (FileNotFoundError, ProcessLookupError):
            return True
        except OSError:  # hidden from this user
            return None
        # Another start time: the pid was reused. Z and X: it has ended, and its parent has not reaped it.
        return int(fields[19]) != identity.start or fields[0] in {b"Z", b"X"}
