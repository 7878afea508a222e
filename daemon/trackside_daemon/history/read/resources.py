"""Read series of the machine, each with its labels apart and as many points as a chart."""

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from trackside_daemon.history.read.charts import chart
from trackside_daemon.history.read.series import LogTail, StoredSeries, Window, find
from trackside_daemon.history.schema import HOST, IMPORTED_HOST
from trackside_daemon.history.series_name import series_labels


class Resource(NamedTuple):
    """A series of the machine in the time of a run."""

    family: str  # the metric's name
    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]  # time in Unix seconds, and the last value until then
    low: float | None = None  # the lowest value in that time, also between the points; None if it is not known
    high: float | None = None  # the highest value

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
        return list(growth(self.points))


def growth(points: Iterable[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Yield the increase per second of a counter until each point, without its resets."""
    for (began, before), (ended, after) in pairwise(points):
        if after >= before and ended > began:
            yield ended, (after - before) / (ended - began)


def machine_stream(connection: sqlite3.Connection, uid: str) -> int | None:
    """Return the stream of the machine that a run trained on; None for an imported run that came without one."""
    row = connection.execute("SELECT id, imported FROM run WHERE uid = ? AND NOT deleted", (uid,)).fetchone()
    if row is None or not row[1]:
        return HOST
    imported = connection.execute(IMPORTED_HOST, row[:1]).fetchone()
    return None if imported is None else int(imported[0])


class Resources:
    """The series of the machine that have samples in a window, each read when it is first asked for.

    Args:
        connection: In a transaction.
        window: Range of Unix seconds.
        points: Most points of a series.
        newest: Most samples of the log to read, of all sources; None for all.
        only: Returns whether to read a series, by its name with labels as on ``/metrics``.
        stream: The `machine_stream`.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        window: Window,
        points: int,
        newest: int | None = None,
        *,
        only: Callable[[str], bool] = lambda _: True,
        stream: int | None = HOST,
    ) -> None:
        self._connection, self._window, self._points, self._only = connection, window, points, only
        self._families: defaultdict[str, list[StoredSeries]] = defaultdict(list)
        self._labels: dict[str, Mapping[str, str]] = {}
        self._read: dict[str, Resource] = {}
        if stream is not None:
            self._tail = LogTail(connection, stream, newest)
            for series in find(connection, stream, self._tail):
                self._families[series.key.partition("{")[0]].append(series)

    def of(
        self, family: str, wanted: Callable[[Mapping[str, str]], bool] = lambda _: True, *, nonzero: bool = False
    ) -> list[Resource]:
        """Return the series of a family, in the order in which they began.

        Args:
            family: The metric's name.
            wanted: Returns whether to read a series, by its labels.
            nonzero: Leave out series that have been 0 all the time.

        Raises:
            ValueError: A block is damaged.
        """
        found = (
            self._resource(series)
            for series in self._families.get(family, ())
            if self._only(series.key) and wanted(self._labels_of(series)) and not (nonzero and self._is_zero(series))
        )
        return [resource for resource in found if resource.points]

    def _labels_of(self, series: StoredSeries) -> Mapping[str, str]:
        if series.key not in self._labels:
            self._labels[series.key] = series_labels(series.key)
        return self._labels[series.key]

    def _is_zero(self, series: StoredSeries) -> bool:
        query = "SELECT 1 FROM series WHERE id = ? AND (min != 0 OR max != 0)"
        return not any(self._tail.read(series)[2]) and not self._connection.execute(query, (series.id,)).fetchone()

    def _resource(self, series: StoredSeries) -> Resource:
        if series.key not in self._read:
            drawn = chart(self._connection, series, self._tail, self._window, self._points)
            family = series.key.partition("{")[0]
            values = [(bucket[1], bucket[4]) for bucket in drawn.points]
            # The first bucket also has the value that a counter began with: its lowest one.
            if family.endswith("_total") and drawn.points and drawn.points[0][2] != drawn.points[0][4]:
                values.insert(0, (drawn.points[0][1], drawn.points[0][2]))
            low = min((bucket[2] for bucket in drawn.points), default=None)
            high = max((bucket[3] for bucket in drawn.points), default=None)
            self._read[series.key] = Resource(family, self._labels_of(series), values, low, high)
        return self._read[series.key]
