"""For how long clients collect rows in a batch, so that the cost of batches does not grow with the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside.wire import GATHER_SECONDS, LONGEST_GATHER, Envelope, encode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trackside_daemon.ingest.session import IngestSession

BATCHES_A_SECOND = 16.0  # of all clients together, as far as they may collect so long
BUSY = 0.5  # share of a core from which clients collect for longer than their number requires
SLOWER, FASTER = 1.25, 0.9  # factors of the time, each second, while the daemon is busy and while it is not
SLOWEST = 8.0  # limit of the product of these factors


class Pacing:
    """The time that all clients are to collect for, between `GATHER_SECONDS` and `LONGEST_GATHER`.

    Attributes:
        milliseconds: That time.
    """

    def __init__(self) -> None:
        self.milliseconds = round(1000 * GATHER_SECONDS)
        self._factor = 1.0

    def update(self, sessions: int, load: float) -> None:
        """Choose the time once a second, by the live sessions and the share of a core that the daemon uses."""
        change = SLOWER if load > BUSY else FASTER
        self._factor = min(SLOWEST, max(1.0, self._factor * change))
        seconds = min(LONGEST_GATHER, max(GATHER_SECONDS, self._factor * sessions / BATCHES_A_SECOND))
        self.milliseconds = 100 * round(10 * seconds)  # in steps, so that small changes send no messages

    def messages(self, sessions: Iterable[IngestSession]) -> list[list[bytes]]:
        """Return a message for each session whose client collects for another time."""
        changed = [session for session in sessions if session.pace != self.milliseconds]
        for session in changed:
            session.pace = self.milliseconds
        return [[session.peer, *encode(Envelope("pace", session.ref.id, self.milliseconds))] for session in changed]
