"""Counters of the messages that ingest accepts and refuses."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from trackside.wire import REASONS
from trackside_daemon.ingest.client_commands import ANSWERS
from trackside_daemon.model.families import daemon
from trackside_daemon.model.metric import Sample

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trackside.wire import WireError

UNNUMBERED = ("beat", *ANSWERS)
KINDS = ("hello", "batch", "skip", "bye", *UNNUMBERED)

# How many pairs of sender and reason of one owner are remembered, so that each is logged once; later ones are only counted.
LOGGED = 1000

log = logging.getLogger("trackside")


class MessageCounts:
    """The counters since the daemon started.

    Attributes:
        duplicates: Numbered messages that had been accepted before.
        gaps: Batches that clients had to drop.
    """

    def __init__(self) -> None:
        self.duplicates = 0
        self.gaps = 0
        self._accepted = dict.fromkeys(KINDS, 0)
        self._rejected = dict.fromkeys((*REASONS, "kind", "owner", "rate"), 0)
        self._logged: dict[str, set[tuple[bytes, str]]] = {}

    def accept(self, kind: str) -> None:
        """Count an accepted message."""
        self._accepted[kind] += 1

    def reject(self, owner: str, sender: bytes, error: WireError) -> None:
        """Count a refusal, and log it once for each sender of an owner and each reason."""
        self._rejected[error.reason] += 1
        if self._is_first(owner, sender, error.reason):
            log.warning("a message was refused: %s; further ones from this sender are only counted", error)

    def redirect(self, owner: str, wanted: str, run: str) -> None:
        """Count a session of an owner that wanted the run of another and got its own; log it once for each."""
        self._rejected["owner"] += 1
        if self._is_first(owner, run.encode(), "owner"):
            log.warning("the run with id %s belongs to another user: this one gets the id %s", wanted, run)

    def _is_first(self, owner: str, sender: bytes, reason: str) -> bool:
        logged = self._logged.setdefault(owner, set())
        if (sender, reason) in logged or len(logged) >= LOGGED:
            return False
        logged.add((sender, reason))
        return True

    def samples(self, rejected_before: Mapping[str, int], restarts: int) -> list[Sample]:
        """Return all counters.

        Args:
            rejected_before: Refusals, by reason, that came before the protocol.
            restarts: Replacements of the worker.
        """
        rejected = {**self._rejected, **rejected_before}
        return [
            *(Sample(daemon.INGEST_MESSAGES, (kind,), count) for kind, count in self._accepted.items()),
            *(Sample(daemon.INGEST_REJECTED, (reason,), count) for reason, count in rejected.items()),
            Sample(daemon.INGEST_DUPLICATES, (), self.duplicates),
            Sample(daemon.INGEST_GAPS, (), self.gaps),
            Sample(daemon.INGEST_RESTARTS, (), restarts),
        ]
