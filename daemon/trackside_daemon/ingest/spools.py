"""What processes that are gone have left on this machine's disk: the daemon sends it to itself, as a client would."""

from __future__ import annotations

import grp
import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from trackside.place import SYSTEM_DIRECTORY, machine_id
from trackside.sender import Sender
from trackside.spool import directories

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

GROUP = "trackside"
"""Who may spool for a system daemon: its members share the directory."""

log = logging.getLogger("trackside")


class Spools:
    """Takes what is left now, and looks again every few seconds.

    Args:
        endpoints: This daemon's own.
        environ: Says where clients spool, as it does for them.
    """

    def __init__(self, endpoints: Sequence[str], environ: Mapping[str, str] = os.environ) -> None:
        self._endpoint = next((one for one in endpoints if one.startswith("ipc://")), None)
        self._environ = environ
        self._sender: Sender | None = None

    def start(self) -> None:
        """Begin, unless there is no place where anything could lie, or no socket file for one of this machine."""
        with suppress(OSError):
            _make_shared()
        try:
            places = list(directories(self._environ, os.getuid()))
            if self._endpoint is not None:
                self._sender = Sender(self._endpoint, spools=places, machine=machine_id())
        except (LookupError, OSError, RuntimeError) as error:
            log.warning("what processes that are gone have left is not taken: %s", error)

    def wait(self, seconds: float) -> None:
        """Until all that is left now is taken, but no longer than that."""
        if self._sender is not None:
            self._sender.swept.wait(seconds)

    def stop(self) -> None:
        """What is not taken by now is by the next daemon."""
        if self._sender is not None:
            self._sender.stop(1.0)


def _make_shared() -> None:
    """Make the system's spool, where that is this daemon's to do: any member of its group may write, and none delete.

    Raises:
        OSError: It cannot be made.
    """
    try:
        group = grp.getgrnam(GROUP).gr_gid
    except KeyError:
        return
    if os.access(SYSTEM_DIRECTORY, os.W_OK | os.X_OK) and not (spool := SYSTEM_DIRECTORY / "spool").exists():
        spool.mkdir(mode=0o700)
        os.chown(spool, -1, group)
        spool.chmod(0o3770)
