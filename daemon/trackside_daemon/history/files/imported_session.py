"""Sessions for the ranks of imported runs."""

from __future__ import annotations

import hashlib
from array import array
from typing import TYPE_CHECKING

from trackside_daemon.model.columns import Columns
from trackside_daemon.model.records import BatchIngested
from trackside_daemon.model.session import SessionRef

if TYPE_CHECKING:
    from trackside_daemon.history.files.items import Push

ROWS = 512  # pushes per message


class ImportedSession:
    """The made-up session of a rank, which collects pushes to messages."""

    def __init__(self, run: str, name: str, attempt: int, rank: int) -> None:
        digest = hashlib.sha256(f"{run}\0{attempt}\0{rank}".encode("utf-8", "surrogatepass")).digest()
        self.ref = SessionRef(digest[:16], run, name, attempt, rank)
        self._number = 0
        self._columns: list[Columns] = []
        self._rows = 0
        self._open: dict[tuple[str, ...], Columns] = {}
        self._keys: set[str] = set()

    def add(self, push: Push) -> BatchIngested | None:
        """Add a push; return a message when there are enough."""
        keys = tuple(push.keys)
        block = self._open.get(keys)
        if block is None:
            # Several blocks are open, since some tools write each key apart; each key is in one, so that its order stays.
            if not self._keys.isdisjoint(keys):
                self._close_blocks()
            self._keys.update(keys)
            block = self._open[keys] = Columns(list(keys), array("q"), array("q"), array("d"))
        block.steps.append(push.step)
        block.times.append(push.time * 1000)
        block.values.extend(push.values)
        self._rows += 1
        return self.flush() if self._rows == ROWS else None

    def flush(self) -> BatchIngested | None:
        """Return a message of the collected pushes; None without any."""
        self._close_blocks()
        columns = self._columns
        self._columns = []
        self._rows = 0
        if not columns:
            return None
        self._number += 1
        return BatchIngested(self.ref, self._number, columns)

    def _close_blocks(self) -> None:
        self._columns += self._open.values()
        self._open = {}
        self._keys = set()
