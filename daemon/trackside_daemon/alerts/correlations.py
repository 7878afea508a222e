"""The ids by which other systems refer to runs, from the hellos of their sessions to the alerts about them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.model.records import SessionOpened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.model.finding import Finding
    from trackside_daemon.model.metric import Batch

RUNS = 4096  # most runs that are remembered


class Correlations:
    """A `FindingSource` that finds nothing and remembers the ids."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}

    def accept(self, batch: Batch) -> Sequence[Finding]:
        """Remember the ids in the sessions of a batch."""
        for record in batch.records:
            if isinstance(record, SessionOpened) and record.session.correlation:
                self._ids[record.session.run] = record.session.correlation
                if len(self._ids) > RUNS:
                    del self._ids[next(iter(self._ids))]
        return ()

    def of(self, run: str) -> str:
        """Return the id of a run; empty for none."""
        return self._ids.get(run, "")
