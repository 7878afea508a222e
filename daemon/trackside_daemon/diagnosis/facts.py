"""Read what a diagnosis needs from the history: the times of the ranks, the alerts, and the machine's series."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from trackside_daemon.diagnosis.ledger import RankSpan
from trackside_daemon.history.read import reader
from trackside_daemon.history.read.resources import Resource, read_resources
from trackside_daemon.history.read.series import LogTail, Window
from trackside_daemon.history.schema import BLOCK_BITS
from trackside_daemon.history.time_accounting import rank_times

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Mapping, Sequence

POINTS = 600  # most points of a series; a diagnosis reads as many as a chart, whatever the length of the run

_FIRST = "SELECT time_min FROM block WHERE id >= series.id << {0} AND id < series.id + 1 << {0} ORDER BY id LIMIT 1"
_LAST = "SELECT time_max FROM block WHERE id >= series.id << {0} AND id < series.id + 1 << {0} ORDER BY id DESC LIMIT 1"
_PACKED = f"SELECT min(({_FIRST})), max(({_LAST})) FROM series WHERE stream = ?".format(BLOCK_BITS)  # noqa: S608


class Facts(NamedTuple):
    """A run with its ranks, alerts and resources.

    Attributes:
        run: The run, without metrics.
        spans: Its ranks by attempt.
        alerts: Its alerts and those of the machine in its time, oldest first.
        resources: Series of the machine.
        ended: The run's end, or now, in Unix seconds.
        resumes: The verdicts on its resumes, oldest first.
    """

    run: Mapping[str, Any]
    spans: Sequence[RankSpan]
    alerts: Sequence[Mapping[str, Any]]
    resources: Sequence[Resource]
    ended: float
    resumes: Sequence[Mapping[str, Any]] = ()

    @property
    def wall(self) -> float:
        """The wall time in seconds."""
        return max(0.0, self.ended - float(self.run["started"]))

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return max(1, len({span.rank for span in self.spans}))

    def of(self, family: str) -> list[Resource]:
        """Return the series of a family that have samples."""
        return [resource for resource in self.resources if resource.family == family]


def read_facts(connection: sqlite3.Connection, uid: str, families: Collection[str]) -> Facts:
    """Return the facts about a run, by its id.

    Args:
        connection: In a transaction.
        uid: The run's id.
        families: Metric families of the machine to read.

    Raises:
        UnknownRunError: There is no run with this id.
        ValueError: A block is damaged.
    """
    run = reader.head(connection, uid)
    ended = time.time() if run["ended"] is None else float(run["ended"])
    (row,) = connection.execute("SELECT id FROM run WHERE uid = ?", (uid,)).fetchone()
    attempts = {attempt["attempt"]: attempt for attempt in run["attempt_list"]}
    pushes = _pushes(connection, row)
    spans = []
    for times in rank_times(connection, row):
        attempt = attempts[times.attempt]
        until = ended if attempt["ended"] is None else attempt["ended"]
        first, last = pushes[times.attempt, times.rank]
        spans.append(
            RankSpan(times.attempt, times.rank, attempt["started"], until, first, last, times.phases, times.account)
        )
    window = Window("time", float(run["started"]), ended)
    resources = read_resources(connection, families, window, POINTS)
    own = reader.alerts(connection, reader.AlertFilter(uid, evidence=False))
    return Facts(run, spans, own, resources, ended, reader.resumes(connection, row))


def _pushes(connection: sqlite3.Connection, run: int) -> dict[tuple[int, int], tuple[float | None, float | None]]:
    """Return the Unix times of first and last push by attempt and rank."""
    times = {}
    for stream, attempt, rank in connection.execute("SELECT id, attempt, rank FROM stream WHERE run = ?", (run,)):
        tail = LogTail(connection, stream)
        packed = connection.execute(_PACKED, (stream,)).fetchone()
        known = [time for time in (*packed, tail.first_time(), tail.last_time()) if time is not None]
        times[attempt, rank] = (min(known) / 1e6, max(known) / 1e6) if known else (None, None)
    return times
