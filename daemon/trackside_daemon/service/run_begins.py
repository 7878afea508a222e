"""Read the begins of runs in the history without waiting for it: a disk may hang, and the tick must go on."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from trackside_daemon.diagnosis.live_costs import read_begin

if TYPE_CHECKING:
    from trackside_daemon.diagnosis.live_costs import Begin
    from trackside_daemon.history.read.series import Readable

MOST = 1024  # begins that are remembered

log = logging.getLogger("trackside")


class RunBegins:
    """Returns the begin of a run, by its id, once a thread has read it, and None until then.

    Args:
        history: The history.
    """

    def __init__(self, history: Readable) -> None:
        self._history = history
        self._found: dict[str, Begin] = {}
        self._thread: threading.Thread | None = None

    def __call__(self, uid: str) -> Begin | None:
        """Return the begin of a run; start to read it if no other one is being read."""
        if uid not in self._found and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._read, args=(uid,), name="trackside-costs", daemon=True)
            self._thread.start()
        return self._found.get(uid)

    def _read(self, uid: str) -> None:
        try:
            with self._history.reading() as connection:
                begin = read_begin(connection, uid)
        except Exception as error:  # noqa: BLE001  the daemon must go on
            log.debug("the begin of run id %s cannot be read: %r", uid, error)
            return
        if begin is not None:
            if len(self._found) >= MOST:
                self._found.clear()
            self._found[uid] = begin
