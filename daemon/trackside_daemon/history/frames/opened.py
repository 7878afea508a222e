"""The history as Python objects: its runs, and the samples of each."""

from __future__ import annotations

import json
import os
import sqlite3
import warnings
from array import array
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from trackside_daemon.history import directory
from trackside_daemon.history.database import FILE
from trackside_daemon.history.frames import html
from trackside_daemon.history.media import index
from trackside_daemon.history.read import alert_reader, reader, run_query
from trackside_daemon.history.read.offline import Offline
from trackside_daemon.history.read.series import EVERYTHING, Window, samples

VARIABLE = "TRACKSIDE_STORAGE__PATH"  # variable of the daemon's setting
SHOWN_RUNS = 20  # runs that a notebook shows


class Series(NamedTuple):
    """All samples of one key of one rank, in the order of commit; a series of the machine has no attempt and no rank.

    `numpy.asarray` makes arrays of the columns without a copy.

    Attributes:
        attempt: The attempt of the run.
        rank: The rank.
        key: The key.
        steps: The step of each sample.
        times: Unix microseconds of each sample.
        values: The values, also NaN and infinities, with every bit.
    """

    attempt: int | None
    rank: int | None
    key: str
    steps: array[int]
    times: array[int]
    values: array[float]


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


class History:
    """A history, read from its file. It needs no daemon; one may write it meanwhile.

    Args:
        path: The directory of the history, or the file in it; None for the directory in which a daemon of this user
            writes by default.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        found = Path(path or os.environ.get(VARIABLE, "") or directory.default_directory(os.environ, os.getuid()))
        self.path = found.parent if found.name == FILE else found.expanduser()

    def runs(
        self, name: str = "", *, query: str = "", tag: str = "", state: str = "", limit: int = 0
    ) -> list[RunHistory]:
        """Return the runs, the newest first.

        Args:
            name: Only runs with this in their names.
            query: Only runs that this selects, such as ``lr=3e-4 tag:sweep finished``: see docs/queries.md.
            tag: Only runs with this tag.
            state: Only runs in this state, such as ``finished`` or ``failed``.
            limit: Number of runs; 0 for all.

        Raises:
            QueryError: The query cannot be read; the message says which part.
            HistoryError: There is no history, or it cannot be read.
        """
        terms = run_query.parse(query)
        rows = self._rows(reader.RunFilter(name, tag, state, limit=0 if terms else limit), terms)
        return [RunHistory(self.path, run) for run in rows[: limit or None]]

    def __getitem__(self, run: str) -> RunHistory:
        """Return the run with this id, the newest with this name, or the only one whose id begins so.

        Raises:
            KeyError: There is none, or there are several.
        """
        try:
            return self.run(run)
        except reader.UnknownRunError as error:
            raise KeyError(str(error)) from None

    def run(self, run: str) -> RunHistory:
        """Return the run with this id, the newest with this name, or the only one whose id begins so.

        Raises:
            UnknownRunError: There is none, or there are several.
            HistoryError: There is no history, or it cannot be read.
        """
        with _reading(self.path) as connection:
            uid = reader.resolve(connection, run)
            return RunHistory(self.path, _current(connection, reader.head(connection, uid)))

    def to_pandas(self) -> Any:
        """Return the runs as a ``pandas.DataFrame``, a row for each."""
        from trackside_daemon.history.frames.optional_library import library

        return library("pandas").DataFrame(self._rows(reader.RunFilter()))

    def __repr__(self) -> str:
        return f"<trackside history {str(self.path)!r}>"

    def _repr_html_(self) -> str:
        return html.runs(self._rows(reader.RunFilter(limit=SHOWN_RUNS)))

    def _rows(self, wanted: reader.RunFilter, terms: Sequence[run_query.Term] = ()) -> list[dict[str, Any]]:
        with _reading(self.path) as connection:
            rows = [_current(connection, run) for run in reader.runs(connection, wanted)]
            return run_query.select(connection, terms, rows).runs if terms else rows


class RunHistory:
    """A run in the history; `trackside.open` and `History` return it.

    Attributes:
        id: Its id.

    Raises:
        UnknownRunError: Something of a run is read that was deleted meanwhile.
    """

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self._path = path
        self._about = about
        self.id = str(about["id"])

    @property
    def about(self) -> dict[str, Any]:
        """Name, state, start, end, tags, step, loss and user; of a run that has not ended they are read again each time."""
        return self._about if self._about["ended"] is not None else self._head()

    @property
    def name(self) -> str:
        """The name that people see."""
        return str(self._about["name"])

    @property
    def config(self) -> Any:
        """The configuration of the last attempt that has one; None if none has."""
        attempts = self._head()["attempt_list"]
        return next((one["config"] for one in reversed(attempts) if one["config"] is not None), None)

    @property
    def keys(self) -> list[str]:
        """The keys of all ranks, in the order in which they began."""
        with self._reading() as connection:
            return list(dict.fromkeys(found.series.key for found in reader.series(connection, self.id, ranks=())))

    def series(
        self,
        keys: str | Sequence[str] | None = None,
        *,
        ranks: Collection[int] | None = None,
        attempt: int | None = None,
        steps: tuple[float, float] | None = None,
    ) -> list[Series]:
        """Return series with all their samples. It needs no library.

        Args:
            keys: A key or several; None for all that the ranks pushed. A key that begins with ``trackside_`` is a
                series of the GPUs or the host, in the time of the run.
            ranks: Only these ranks; None for all.
            attempt: Only this attempt; None for all.
            steps: Only samples from the first to the last of these steps.

        Raises:
            HistoryError: There is no history, or it cannot be read.
            ValueError: A part of the file is damaged.
        """
        wanted = [keys] if isinstance(keys, str) else keys
        with _file(self._path) as file:
            with file.reading() as connection:
                begin, end = reader.span(connection, self.id)
                found = list(reader.series(connection, self.id, wanted, ranks or (), attempt))
            lifetime = Window("time", begin, float("inf") if end is None else end)
            window = EVERYTHING if steps is None else Window("step", *steps)
            return [_whole(file, one, lifetime if one.rank is None else window) for one in found]

    def media(self, key: str = "", *, kind: str = "") -> list[Media]:
        """Return what was logged with `log_image`, `log_text`, `log_table` and `log_histogram`, the oldest first.

        Args:
            key: Only this key; empty for all.
            kind: Only ``image``, ``text``, ``table`` or ``histogram``; empty for all.
        """
        with self._reading():  # the files of a deleted run may still be there
            directory = index.directory_of(self._path, self.id)
        return [
            Media(item.kind, item.key, item.attempt, item.rank, item.step, item.time, directory / item.file)
            for item in index.read(self._path, self.id)
            if key in {"", item.key} and kind in {"", item.kind}
        ]

    def batches(self, step: int | None = None, *, rank: int | None = None) -> list[dict[str, Any]]:
        """Return the batches of data in the evidence of alerts about the loss and the gradients, the oldest first.

        Each has ``step``, ``rank``, ``alert``, and what is known: ``samples``, their ``count`` and ``names``, the ``dataset``, the
        ``number`` of the batch in its ``iteration`` over the loader, ``worker``, and ``why`` the samples are unknown. That of the
        step before has ``before``.

        Args:
            step: Only those of this step; None for all.
            rank: Only those of this rank; None for all.
        """
        with self._reading() as connection:
            return alert_reader.batches(connection, self.id, step=step, rank=rank)

    def to_arrow(
        self,
        keys: str | Sequence[str] | None = None,
        *,
        ranks: Collection[int] | None = None,
        attempt: int | None = None,
    ) -> Any:
        """Return the samples as a ``pyarrow.Table``: a row for each push, by attempt, rank and time.

        Its columns are ``attempt``, ``rank``, ``step``, ``time`` (UTC, in microseconds) and one for each key. A key that
        a push did not have is null; a NaN that was pushed is NaN.

        Args:
            keys: A key or several; None for all.
            ranks: Only these ranks; None for all.
            attempt: Only this attempt; None for all.

        Raises:
            HistoryError: There is no history, or it cannot be read.
            ModuleNotFoundError: The library is not installed.
            ValueError: A part of the file is damaged.
        """
        return self._converted("to_arrow", keys, ranks, attempt)

    def to_pandas(
        self,
        keys: str | Sequence[str] | None = None,
        *,
        ranks: Collection[int] | None = None,
        attempt: int | None = None,
    ) -> Any:
        """Return the samples as a ``pandas.DataFrame``, as `to_arrow` does; a missing key is NaN, too."""
        return self._converted("to_pandas", keys, ranks, attempt)

    def to_polars(
        self,
        keys: str | Sequence[str] | None = None,
        *,
        ranks: Collection[int] | None = None,
        attempt: int | None = None,
    ) -> Any:
        """Return the samples as a ``polars.DataFrame``, as `to_arrow` does."""
        return self._converted("to_polars", keys, ranks, attempt)

    def __repr__(self) -> str:
        return f"<trackside run {self.name!r} ({self.id}), {self.about['state']}>"

    def _repr_html_(self) -> str:
        with _reading(self._path) as connection:
            return html.run(reader.run(connection, self.id, html.SHOWN_KEYS))

    def _head(self) -> dict[str, Any]:
        with self._reading() as connection:
            self._about = _current(connection, reader.head(connection, self.id))
        return self._about

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with _reading(self._path) as connection:
            reader.span(connection, self.id)  # raises an error if the run was deleted
            yield connection

    def _converted(
        self, to: str, keys: str | Sequence[str] | None, ranks: Collection[int] | None, attempt: int | None
    ) -> Any:
        from trackside_daemon.history.frames.optional_library import library

        library("numpy")  # the error has the command that installs it
        from trackside_daemon.history.frames import frame as frames

        with self._reading() as connection:
            frame = frames.read_frame(connection, self.id, [keys] if isinstance(keys, str) else keys, ranks, attempt)
        return getattr(frames, to)(frame)


@contextmanager
def _file(path: Path) -> Iterator[Offline]:
    """Open the file for one question: a notebook may be open for days."""
    file = Offline(path, lambda line: warnings.warn(line, stacklevel=5))
    try:
        yield file
    finally:
        file.close()


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    with _file(path) as file, file.reading() as connection:
        yield connection


def _current(connection: sqlite3.Connection, about: dict[str, Any]) -> dict[str, Any]:
    """Return what a reader has of a run, with the newest step and loss of a live one, and the loss as a float."""
    if about["ended"] is None:
        about |= reader.newest(connection, about["id"])
    return about if about["loss"] is None else {**about, "loss": float(about["loss"])}


def _whole(file: Offline, one: reader.RunSeries, window: Window) -> Series:
    series = Series(one.attempt, one.rank, one.series.key, array("q"), array("q"), array("d"))
    for steps, times, values in samples(file, one.series, one.tail, window):
        series.steps.extend(steps)
        series.times.extend(times)
        series.values.extend(values)
    return series
