"""Series and media of a run as Python objects, for `trackside.open`."""

from __future__ import annotations

import json
from array import array
from typing import TYPE_CHECKING, Any, NamedTuple

from trackside_daemon.history.read.series import samples
from trackside_daemon.history.series_name import series_labels

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trackside_daemon.history.read.offline import Offline
    from trackside_daemon.history.read.reader import RunSeries
    from trackside_daemon.history.read.series import Window


class Series(NamedTuple):
    """All samples of one key of one rank, in the order of commit; a series of the machine has no attempt and no rank.

    `numpy.asarray` makes arrays of the columns without a copy, except of `times`.

    Attributes:
        attempt: The attempt of the run.
        rank: The rank.
        key: The key.
        steps: The step of each sample; 0 in a series of the machine.
        times_us: Unix microseconds of each sample, exact.
        values: The values, also NaN and infinities, with every bit.
        labels: The labels of a series of the machine, such as ``gpu``.
    """

    attempt: int | None
    rank: int | None
    key: str
    steps: array[int]
    times_us: array[int]
    values: array[float]
    labels: Mapping[str, str] = {}

    @property
    def times(self) -> array[float]:
        """Unix seconds of each sample."""
        return array("d", (time / 1e6 for time in self.times_us))

    def __repr__(self) -> str:
        place = "" if self.rank is None else f" of rank {self.rank}, attempt {self.attempt}"
        return f"<trackside series {self.key!r}{place}: {len(self.values)} samples>"


class Media(NamedTuple):
    """An image, a text, a table or a histogram that the training logged.

    Attributes:
        kind: ``image``, ``text``, ``table`` or ``histogram``.
        key: Its key.
        attempt: The attempt of the run.
        rank: The rank.
        step: Its step; None before the first.
        time: Unix seconds.
        path: Its file: PNG, text, or JSON.
    """

    kind: str
    key: str
    attempt: int
    rank: int
    step: int | None
    time: float
    path: Path

    def read(self) -> Any:
        """Return an image as the bytes of its PNG, a text as a string, and other kinds as a dictionary.

        A table has ``columns`` and ``rows``, a histogram ``edges`` and ``counts``.

        Raises:
            OSError: It was deleted meanwhile, by a limit of the history or with its run.
        """
        data = self.path.read_bytes()
        if self.kind == "image":
            return data
        return data.decode() if self.kind == "text" else json.loads(data)


def whole(file: Offline, one: RunSeries, window: Window) -> Series:
    """Return a series with all its samples in a window."""
    labels = series_labels(one.series.key) if one.rank is None else {}
    series = Series(one.attempt, one.rank, one.series.key, array("q"), array("q"), array("d"), labels)
    for steps, times, values in samples(file, one.series, one.tail, window):
        series.steps.extend(steps)
        series.times_us.extend(times)
        series.values.extend(values)
    return series
