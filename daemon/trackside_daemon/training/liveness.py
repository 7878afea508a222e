"""Whether a process that said hello still exists, as far as this machine can tell."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trackside.environment.identity import boot_id, stat

if TYPE_CHECKING:
    from trackside.wire import Identity

SILENCE_SECONDS = 3.0
"""A client says something each second; what is silent for so long is looked at."""

REMOTE_SILENCE_SECONDS = 30.0
"""What is silent for so long on another machine is lost."""


class Liveness:
    """Looks processes up by pid and start time, on the boot that the daemon runs in.

    Args:
        proc: Where the kernel's process files are.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._boot = boot_id(proc)

    def is_lost(self, identity: Identity, silence: float, *, elsewhere: bool = False) -> bool:
        """Whether a client that has said nothing for *silence* seconds is gone; its pid says nothing *elsewhere*."""
        if silence < SILENCE_SECONDS:
            return False
        gone = None if elsewhere else self.is_gone(identity)
        return silence >= REMOTE_SILENCE_SECONDS if gone is None else gone

    def is_here(self, identity: Identity) -> bool:
        """Whether it is a process of this machine, be it in another container."""
        return bool(self._boot) and identity.boot == self._boot

    def is_gone(self, identity: Identity) -> bool | None:
        """Whether the process has ended (/proc/PID/stat, fields 3 and 22); None when it runs on another machine."""
        if identity.boot != self._boot or not identity.start:
            return None
        try:
            fields = stat(self._proc, identity.pid)
        except (FileNotFoundError, ProcessLookupError):
            return True
        except OSError:  # hidden from this user
            return None
        return int(fields[19]) != identity.start or fields[0] in {b"Z", b"X"}
