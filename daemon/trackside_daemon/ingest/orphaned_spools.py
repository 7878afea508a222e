"""Spools that processes left on this machine when they ended: the daemon sends them to itself, as a client would."""

import grp
import logging
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trackside.environment.paths import SYSTEM_DIRECTORY, kept_directory, machine_id, spool_directories
from trackside.transport.orphaned_spool import orphaned_hellos
from trackside.wire import Hello
from trackside_daemon.ingest.endpoint import GROUP

if TYPE_CHECKING:
    from trackside.transport.sender import Sender

SEARCH_SECONDS = 2.0  # how often new spools are searched for

log = logging.getLogger("trackside")


class OrphanedSpools:
    """Reads the orphaned spools, and checks for new ones every few seconds.

    Args:
        endpoints: This daemon's endpoints.
    """

    def __init__(self, endpoints: Sequence[str]) -> None:
        self._endpoint = next((endpoint for endpoint in endpoints if endpoint.startswith("ipc://")), None)
        self._sender: Sender | None = None
        self._places: list[Path] = []
        self._writers: dict[bytes, int] = {}
        self._stopping = threading.Event()
        self._search = threading.Thread(target=self._run, name="trackside-spools", daemon=True)
        with suppress(OSError):
            _make_shared()
        with suppress(LookupError):  # a user without a home
            self._places.extend(spool_directories(os.environ, os.getuid()))
        self._places.extend(place for place in map(kept_directory, endpoints) if place is not None)

    def hellos(self) -> dict[bytes, Hello]:
        """Return the hello of each orphaned spool by session id, the oldest first."""
        if self._endpoint is None:
            return {}
        found = list(orphaned_hellos(self._places, machine_id()))
        self._writers = {session: user for session, _, user in found}
        return {session: hello for session, hello, _ in found}

    def writer(self, session: bytes) -> int | None:
        """Return the user who wrote the files of a session that were opened; None if this daemon has opened none."""
        sent = {} if self._sender is None else self._sender.writers
        return sent.get(session, self._writers.get(session))

    def start(self) -> None:
        """Start to read, if the daemon has a Unix socket."""
        if self._endpoint is None or not self._places:
            return
        begun = False
        with suppress(OSError):  # a directory that cannot be read now
            begun = self._begin()
        if not begun:
            self._search.start()

    def _begin(self) -> bool:
        """Start the sender if an ended process has left a spool; return whether it need not be tried again."""
        if next(orphaned_hellos(self._places, machine_id()), None) is None:
            return False
        # Not before there is a spool, since ZeroMQ takes 6 MiB and two threads.
        from trackside.transport.sender import Sender, SenderIntervals

        intervals = SenderIntervals(sweep=SEARCH_SECONDS)
        try:
            self._sender = Sender(str(self._endpoint), spools=self._places, machine=machine_id(), intervals=intervals)
        except (OSError, RuntimeError) as error:
            log.warning("the spools of ended processes are not read: %s", error)
        return True

    def _run(self) -> None:
        ends = False
        while not ends:
            ends = self._stopping.wait(SEARCH_SECONDS)
            with suppress(OSError):  # a directory that cannot be read now
                if self._begin():
                    return

    def rejected(self) -> dict[str, int]:
        """Return how often the end of a spool could not be read."""
        return {"spool": 0 if self._sender is None else self._sender.torn}

    def wait(self, seconds: float) -> None:
        """Wait until all present spools are read, for so many seconds at most."""
        if self._sender is not None:
            self._sender.swept.wait(seconds)

    def stop(self) -> None:
        """Read what is there, for a moment at most, and stop; the next daemon reads the rest."""
        self._stopping.set()
        if self._search.is_alive():
            self._search.join()
        if self._sender is not None:
            self._sender.search(SEARCH_SECONDS)
            self._sender.stop(1.0)


def _make_shared() -> None:
    """Make the system-wide spool if this daemon may: all members of the group may write there, but not delete.

    Raises:
        OSError: It cannot be made.
    """
    try:
        group = grp.getgrnam(GROUP).gr_gid
    except KeyError:
        return
    if os.access(SYSTEM_DIRECTORY, os.W_OK | os.X_OK) and not (spool := SYSTEM_DIRECTORY / "spool").exists():
        spool.mkdir(mode=0o700)
        try:
            os.chown(spool, -1, group)
            spool.chmod(0o3770)  # setgid: files get the group; sticky: no other user may delete them
        except OSError:
            spool.rmdir()
            raise
