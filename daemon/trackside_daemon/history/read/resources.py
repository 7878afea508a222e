"""Read series of the machine, each with its labels apart and as many points as a chart."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.history.read.charts import chart
from trackside_daemon.history.read.series import LogTail, find
from trackside_daemon.history.schema import HOST, IMPORTED_HOST
from trackside_daemon.history.series_name import series_labels

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Collection, Mapping, Sequence

    from trackside_daemon.history.read.series import StoredSeries, Window


class Resource(NamedTuple):
    """A series of the machine in the time of a run.

    Attributes:
        family: The metric's name.
        labels: Its labels.
        points: Time in Unix seconds, and the last value until then.
        low: The lowest value in that time, also between the points; None if it is not known.
        high: The highest value.
    """

    family: str
    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]
    low: float | None = None
    high: float | None = None

    @property
    def increase(self) -> float:
        """The increase of a counter, also across resets."""
        values = [value for _, value in self.points]
        return sum(after - before if after >= before else after for before, after in pairwise(values))

    @property
    def mean(self) -> float:
        """The mean of a gauge."""
        return sum(value for _, value in self.points) / len(self.points)

    @property
    def rates(self) -> list[tuple[float, float]]:
        """The increase per second of a counter until each point, without its resets."""
        return [
            (ended, (after - before) / (ended - began))
            for (began, before), (ended, after) in pairwise(self.points)
            if after >= before and ended > began
        ]


def machine_stream(connection: sqlite3.Connection, uid: str) -> int | None:
    """Return the stream of the machine that a run trained on; None for an imported run that came without one."""
    row = connection.execute("SELECT id, imported FROM run WHERE uid = ? AND NOT deleted", (uid,)).fetchone()
    if row is None or not row[1]:
        return HOST
    imported = connection.execute(IMPORTED_HOST, row[:1]).fetchone()
    return None if imported is None else int(imported[0])


def read_resources(
    connection: sqlite3.Connection,
    families: Collection[str],
    window: Window,
    points: int,
    newest: int | None = None,
    *,
    only: Callable[[str], bool] = lambda _: True,
    stream: int | None = HOST,
) -> list[Resource]:
    """Return the series of these metric families of the machine that have samples in a window.

    Args:
        connection: In a transaction.
        families: Names of metric families.
        window: Range of Unix seconds.
        points: Most points of a series.
        newest: Most samples of the log to read, of all sources; None for all.
        only: Returns whether to read a series, by its name with labels as on ``/metrics``.
        stream: The `machine_stream`.

    Raises:
        ValueError: A block is damaged.
    """
    if stream is None:
        return []
    tail = LogTail(connection, stream, newest)
    wanted = frozenset(families)
    machine = (
        series
        for series in find(connection, stream, tail)
        if series.key.partition("{")[0] in wanted and only(series.key)
    )
    read = (_resource(connection, series, tail, window, points) for series in machine)
    return [resource for resource in read if resource.points]


def _resource(
    connection: sqlite3.Connection, series: StoredSeries, tail: LogTail, window: Window, points: int
) -> Resource:
    drawn = chart(connection, series, tail, window, points)
    # The first bucket also has the value that a counter began with: its lowest one.
    values = [(bucket[1], bucket[4]) for bucket in drawn.points]
    if drawn.points and drawn.points[0][2] != drawn.points[0][4]:
        values.insert(0, (drawn.points[0][1], drawn.points[0][2]))
    low = min((bucket[2] for bucket in drawn.points), default=None)
    high = max((bucket[3] for bucket in drawn.points), default=None)
    return Resource(series.key.partition("{")[0], series_labels(series.key), values, low, high)
