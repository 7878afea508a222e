"""The history as Python objects, for `trackside.open`: its runs, and the samples of each.

What only some need is imported where it is used: most ask for series.
"""

from __future__ import annotations

import json
import os
import sqlite3
import warnings
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from trackside_daemon.config.near import near_name
from trackside_daemon.history import directory
from trackside_daemon.history.database import FILE
from trackside_daemon.history.frames import html
from trackside_daemon.history.media import index
from trackside_daemon.history.read import alert_reader, reader, run_columns, run_query
from trackside_daemon.history.read.offline import Offline
from trackside_daemon.history.read.series import EVERYTHING, Window, samples
from trackside_daemon.history.series_name import series_labels
from trackside_daemon.model.configuration import flat
from trackside_daemon.model.families.training import STATES
from trackside_daemon.model.text import read_moment

if TYPE_CHECKING:
    from trackside_daemon.questions.question import Question

Keys = str | Sequence[str]
Ranks = int | Collection[int]
Moment = float | str | datetime
Missing = Literal["error", "ignore"]

VARIABLE = "TRACKSIDE_STORAGE__PATH"  # variable of the daemon's setting
SHOWN_RUNS = 20  # runs that a notebook shows


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


class History:
    """A history, read from its file. It needs no daemon; one may write it meanwhile.

    Args:
        path: The directory of the history, or its file; None for the directory in which a daemon of this user
            writes by default.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        found = Path(path or os.environ.get(VARIABLE, "") or directory.default_directory(os.environ, os.getuid()))
        self.path = found.parent if found.name == FILE else found.expanduser()

    def runs(
        self,
        name: str = "",
        *,
        query: str = "",
        tag: str = "",
        state: str = "",
        since: Moment | None = None,
        until: Moment | None = None,
        order_by: str = "-started",
        limit: int = 0,
    ) -> list[RunHistory]:
        """Return the runs, the newest first.

        Args:
            name: Only runs with this in their names.
            query: Only runs that this selects, such as ``lr=3e-4 tag:sweep finished``: see docs/queries.md.
            tag: Only runs with this tag.
            state: Only runs in this state, such as ``finished`` or ``failed``.
            since: Only runs that began then or later: Unix seconds, a ``datetime``, or a text such as ``7d`` or ``2026-11-01``.
            until: Only runs that began then or earlier.
            order_by: ``loss``, ``step``, ``name``, …, or ``config.lr``, ``summary.best``, or the last value of a key. A
                ``-`` in front reverses the order. What is NaN or missing comes last.
            limit: Number of runs; 0 for all.

        Raises:
            ValueError: The query, the state, a time, the order or the limit is invalid; the message says how.
            HistoryError: There is no history, or it cannot be read.
        """
        wanted = _filter(name, tag, state, since, until)
        return [RunHistory(self.path, run) for run in self._rows(wanted, query, order_by, limit)]

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

    def to_pandas(
        self,
        keys: Keys = (),
        *,
        query: str = "",
        since: Moment | None = None,
        until: Moment | None = None,
        order_by: str = "-started",
        limit: int = 0,
    ) -> Any:
        """Return runs as a flat ``pandas.DataFrame``, a row for each.

        Its columns are the facts of the runs, with ``started`` and ``ended`` as datetimes in UTC, ``config.lr`` and so on of
        their settings, ``summary.best`` and so on of their results, and of each of *keys* ``loss.last``, ``loss.min`` and ``loss.max``:
        those of the lowest rank, as far as they are packed, so not yet of a run that has just begun.

        Args:
            keys: Pushed keys.
            query: This and the others are as of `runs`.
            since: See `runs`.
            until: See `runs`.
            order_by: See `runs`.
            limit: See `runs`.

        Raises:
            UnknownKeyError: No run has one of *keys*.
            ValueError: As of `runs`.
            HistoryError: There is no history, or it cannot be read.
        """
        from trackside_daemon.history.frames.optional_library import library

        pandas = library("pandas")
        rows = self._rows(_filter(since=since, until=until), query, order_by, limit)
        with _reading(self.path) as connection:
            names = list(dict.fromkeys(_listed(keys) or ()))
            known = set(run_columns.keys(connection, None)) if names else set()
            for key in names:
                if key not in known:
                    raise reader.UnknownKeyError(f"key {key!r}: no run has it{near_name(key, known)}")
            values = run_columns.values(connection, names) if names else {}
            configurations = run_columns.configurations(connection)
        table = pandas.DataFrame([_row(row, configurations.get(row["id"]), values.get(row["id"], {})) for row in rows])
        for column in {"started", "ended"}.intersection(table.columns):
            table[column] = pandas.to_datetime(table[column].astype(float), unit="s", utc=True)
        return table

    def __repr__(self) -> str:
        return f"<trackside history {str(self.path)!r}>"

    def _repr_html_(self) -> str:
        return html.runs(self._rows(reader.RunFilter(), limit=SHOWN_RUNS))

    def _rows(
        self, wanted: reader.RunFilter, query: str = "", order_by: str = "-started", limit: int = 0
    ) -> list[dict[str, Any]]:
        if limit < 0:
            raise ValueError(f"limit: must be 0 for all, or a number of runs, not {limit}")
        terms, as_listed = run_query.parse(query), order_by == "-started"
        early = limit if as_listed and not terms else 0
        with _reading(self.path) as connection:
            rows = [_current(connection, run) for run in reader.runs(connection, wanted._replace(limit=early))]
            rows = run_query.select(connection, terms, rows).runs if terms else rows
            return (rows if as_listed else run_query.ordered(connection, rows, order_by))[: limit or None]


class RunHistory:
    """A run in the history; `trackside.open` and `History` return it. Two of the same run are equal.

    What is said of a run that has not ended is read anew each time; that of an ended one as `refresh` found it.

    Raises:
        UnknownRunError: Something of a run is read that was deleted meanwhile.
    """

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self._path = path
        self._about = about

    @property
    def id(self) -> str:
        """The identifier of the run."""
        return str(self._about["id"])

    @property
    def about(self) -> dict[str, Any]:
        """Name, state, start, end, tags, step, loss and more, as the HTTP API lists them; NaN is a float."""
        if self._about["ended"] is None:
            self.refresh()
        return self._about

    def refresh(self) -> RunHistory:
        """Read anew what is said of an ended run, such as its tags and whether a resume has continued it; return the run."""
        with self._reading() as connection:
            self._about = _current(connection, reader.head(connection, self.id))
        return self

    @property
    def name(self) -> str:
        """The name that people see."""
        return str(self._about["name"])

    @property
    def state(self) -> str:
        """``starting``, ``running``, ``stalled``, ``finished``, ``stopped``, ``failed`` or ``lost``."""
        return str(self.about["state"])

    @property
    def step(self) -> int | None:
        """The highest step of all ranks; None before the first."""
        found: int | None = self.about["step"]
        return found

    @property
    def started(self) -> float:
        """Unix seconds of its start."""
        return float(self._about["started"])

    @property
    def ended(self) -> float | None:
        """Unix seconds of its end; None before it."""
        found: float | None = self.about["ended"]
        return found

    @property
    def tags(self) -> list[str]:
        """The words to find the run by."""
        return list(self.about["tags"])

    @property
    def summary(self) -> dict[str, Any]:
        """The results, as `trackside.summary` set them."""
        return dict(self.about["summary"])

    @property
    def config(self) -> Any:
        """The configuration of the last attempt that has one; None if none has."""
        if "attempt_list" not in self.about:  # as a list of runs has it
            self.refresh()
        attempts = self._about["attempt_list"]
        return next((one["config"] for one in reversed(attempts) if one["config"] is not None), None)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The newest 10,000 events, oldest first, each with ``kind``, ``time``, ``step``, ``attempt``, ``rank`` and ``fields``."""
        from trackside_daemon.questions.runs import Events

        return list(self._ask(Events(run=self.id, limit=10_000))["events"])

    @property
    def alerts(self) -> list[dict[str, Any]]:
        """The newest 1,000 alerts with their evidence, oldest first, as ``/alerts`` of docs/http-api.md has them."""
        from trackside_daemon.questions.alerts import Alerts

        return list(self._ask(Alerts(run=self.id))["alerts"])

    def checkpoints(self, metric: str = "") -> list[dict[str, Any]]:
        """Return its checkpoints in the order of saving, each with ``step``, ``path``, ``state``, ``good`` and ``value``.

        Args:
            metric: The key of ``value``; empty for that which was reported with a checkpoint, else the loss.
        """
        from trackside_daemon.questions.artifacts import Checkpoints

        found = self._ask(Checkpoints(id=self.id, metric=metric))["checkpoints"]
        return [{**one, "value": None if one["value"] is None else float(one["value"])} for one in found]

    def diagnosis(self, *, baseline: str = "") -> dict[str, Any]:
        """Return where its time went, and why it is slow or broken, as ``/runs/{id}/diagnosis`` of docs/http-api.md.

        It needs ``trackside[daemon]``. Without a daemon it has no costs, and does not ask the ranks of a live run.

        Args:
            baseline: A run or a tag to compare with; empty for the pinned run of the name, else the last finished one.
        """
        from trackside_daemon.questions.diagnosis import Diagnosis

        return self._ask(Diagnosis(id=self.id, baseline=(baseline,) if baseline else ()))

    @property
    def keys(self) -> list[str]:
        """The keys of all ranks, in the order in which they began."""
        with self._reading() as connection:
            return list(dict.fromkeys(found.series.key for found in reader.series(connection, self.id, ranks=())))

    def series(
        self,
        keys: Keys | None = None,
        *,
        ranks: Ranks | None = None,
        attempt: int | None = None,
        steps: tuple[float, float] | None = None,
        missing: Missing = "error",
    ) -> list[Series]:
        """Return series with all their samples. It needs no library.

        Args:
            keys: A key or several; None for all that the ranks pushed. A key that begins with ``trackside_`` is a
                series of the GPUs or the host, in the time of the run.
            ranks: Only this rank, or these; None for all.
            attempt: Only this attempt; None for all.
            steps: Only samples from the first to the last of these steps.
            missing: ``ignore`` leaves out a key that the run does not have.

        Raises:
            UnknownKeyError: The run has no such key, in no rank and attempt.
            HistoryError: There is no history, or it cannot be read.
            ValueError: A part of the file is damaged.
        """
        wanted, chosen = _listed(keys), _ranks(ranks)
        with _file(self._path) as file:
            with file.reading() as connection:
                begin, end = reader.span(connection, self.id)
                # Of the reader, no ranks are all of them.
                found = list(
                    reader.series(connection, self.id, wanted, () if chosen is None else chosen or {-1}, attempt)
                )
                if missing == "error":
                    reader.check_keys(connection, [self.id], wanted or (), found)
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
        keys: Keys | None = None,
        *,
        ranks: Ranks | None = None,
        attempt: int | None = None,
        missing: Missing = "error",
    ) -> Any:
        """Return the samples as a ``pyarrow.Table``: a row for each push, by attempt, rank and time.

        Its columns are ``attempt``, ``rank``, ``step``, ``time`` (UTC, in microseconds) and one for each key. A key that
        a push did not have is null; a NaN that was pushed is NaN.

        Args:
            keys: A key or several that the ranks pushed; None for all. Of the GPUs and the host, see `machine_to_pandas`.
            ranks: Only this rank, or these; None for all.
            attempt: Only this attempt; None for all.
            missing: ``ignore`` makes an empty column of a key that the run does not have.

        Raises:
            UnknownKeyError: The run has no such key, in no rank and attempt.
            HistoryError: There is no history, or it cannot be read.
            ModuleNotFoundError: The library is not installed.
            ValueError: A part of the file is damaged.
        """
        return self._converted("to_arrow", keys, ranks, attempt, missing)

    def to_pandas(
        self,
        keys: Keys | None = None,
        *,
        ranks: Ranks | None = None,
        attempt: int | None = None,
        missing: Missing = "error",
    ) -> Any:
        """Return the samples as a ``pandas.DataFrame``, as `to_arrow` does; a missing key is NaN, too."""
        return self._converted("to_pandas", keys, ranks, attempt, missing)

    def to_polars(
        self,
        keys: Keys | None = None,
        *,
        ranks: Ranks | None = None,
        attempt: int | None = None,
        missing: Missing = "error",
    ) -> Any:
        """Return the samples as a ``polars.DataFrame``, as `to_arrow` does."""
        return self._converted("to_polars", keys, ranks, attempt, missing)

    def machine_to_pandas(self, keys: Keys, *, join: Keys = ()) -> Any:
        """Return series of the GPUs and the host in the time of the run, joined to its steps, as a ``pandas.DataFrame``.

        It has a row for each time and each set of labels. Its columns are ``time`` (UTC), ``step``, the newest of the lowest
        rank until then (null before the first), those of *join*, a column for each label, such as ``gpu``, and one for each
        family. A row has NaN for families with other labels.

        Args:
            keys: Families, such as ``trackside_gpu_power_watts``, or single series.
            join: Pushed keys whose newest value of the lowest rank until then is a column.

        Raises:
            UnknownKeyError: The run, or its machine, has no such key.
            ModuleNotFoundError: pandas is not installed.
        """
        from trackside_daemon.history.frames.optional_library import library

        pandas, families = library("pandas"), _listed(keys) or []
        machine = self.series(families)
        if pushed := [one.key for one in machine if one.rank is not None]:
            raise reader.UnknownKeyError(
                f"key {pushed[0]!r}: no series of the machine; name it in join, or use to_pandas"
            )
        with self._reading() as connection:
            lowest = min((one.rank for one in reader.series(connection, self.id) if one.rank is not None), default=0)
        joined = _listed(join) or []
        steps = self.to_pandas(joined or None, ranks=lowest).dropna(axis=1, how="all").drop(columns=["attempt", "rank"])
        steps = steps.astype({"step": "Int64"})[["time", "step", *joined]].sort_values("time").ffill()
        by_labels: dict[tuple[str, ...], list[Any]] = {}
        for one in machine:
            times = pandas.to_datetime(list(one.times_us), unit="us", utc=True).astype("datetime64[us, UTC]")
            family = {"time": times, **one.labels, one.key.partition("{")[0]: list(one.values)}
            by_labels.setdefault(tuple(one.labels), []).append(pandas.DataFrame(family))
        tables = []
        for labels, parts in by_labels.items():
            index = ["time", *labels]
            by_family: dict[str, list[Any]] = {}
            for part in parts:
                by_family.setdefault(part.columns[-1], []).append(part.set_index(index))
            whole = pandas.concat([pandas.concat(each) for each in by_family.values()], axis=1)
            tables.append(whole.reset_index())
        found = pandas.concat(tables).sort_values("time", kind="stable")
        return pandas.merge_asof(found, steps, on="time").reset_index(drop=True)

    def __repr__(self) -> str:
        return f"<trackside run {self.name!r} ({self.id}), {self.about['state']}>"

    def _repr_html_(self) -> str:
        with _reading(self._path) as connection:
            return html.run(reader.run(connection, self.id, html.SHOWN_KEYS))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunHistory) and (self._path, self.id) == (other._path, other.id)

    def __hash__(self) -> int:
        return hash((self._path, self.id))

    def _ask(self, question: Question) -> dict[str, Any]:
        from trackside_daemon.questions.question import Live

        def prices() -> Any:
            from trackside_daemon.diagnosis.settings import CostSection

            return CostSection()

        with _file(self._path) as file:
            return question.answer(file, Live(prices=prices, straggler_ratio=lambda: 1.0))

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with _reading(self._path) as connection:
            reader.span(connection, self.id)  # raises an error if the run was deleted
            yield connection

    def _converted(self, to: str, keys: Keys | None, ranks: Ranks | None, attempt: int | None, missing: Missing) -> Any:
        from trackside_daemon.history.frames.optional_library import library

        library("numpy")  # the error has the command that installs it
        from trackside_daemon.history.frames import frame as frames

        wanted, convert = _listed(keys), getattr(frames, to)
        for key in wanted or ():
            if key.startswith(reader.MACHINE):
                raise reader.UnknownKeyError(f"key {key!r}: of the machine, not of a rank; use machine_to_pandas")
        with self._reading() as connection:
            frame = frames.read_frame(connection, self.id, wanted, _ranks(ranks), attempt)
            if missing == "error" and wanted is not None and not frame.has_all():
                reader.check_keys(connection, [self.id], wanted, ())
        return convert(frame)


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
    labels = series_labels(one.series.key) if one.rank is None else {}
    series = Series(one.attempt, one.rank, one.series.key, array("q"), array("q"), array("d"), labels)
    for steps, times, values in samples(file, one.series, one.tail, window):
        series.steps.extend(steps)
        series.times_us.extend(times)
        series.values.extend(values)
    return series


def _listed(keys: Keys | None) -> list[str] | None:
    return [keys] if isinstance(keys, str) else None if keys is None else list(keys)


def _ranks(ranks: Ranks | None) -> frozenset[int] | None:
    return None if ranks is None else frozenset([ranks] if isinstance(ranks, int) else ranks)


def _filter(
    name: str = "", tag: str = "", state: str = "", since: Moment | None = None, until: Moment | None = None
) -> reader.RunFilter:
    if state and state not in STATES:
        raise ValueError(f"state: must be one of {', '.join(STATES)}, not {state!r}")
    return reader.RunFilter(name, tag, state, _seconds(since), _seconds(until, end=True))


def _seconds(moment: Moment | None, *, end: bool = False) -> float | None:
    if isinstance(moment, datetime):
        return moment.timestamp()
    return read_moment(moment, end=end) if isinstance(moment, str) else moment


def _row(run: Mapping[str, Any], config: Any, values: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return a run as a row of a table."""
    facts = {name: value for name, value in run.items() if name not in {"summary", "attempt_list"}}
    found = {**facts, **flat(config or {}, "config"), **flat(run["summary"], "summary")}
    for key, of_key in values.items():
        found |= {f"{key}.{name}": None if value is None else float(value) for name, value in of_key.items()}
    return found
