"""The history as a Python object, for `trackside.open`: its runs, selected, ordered and as a table."""

import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from trackside_daemon.config.near import near_name
from trackside_daemon.history import directory
from trackside_daemon.history.database import FILE
from trackside_daemon.history.frames import html
from trackside_daemon.history.read import reader, run_query
from trackside_daemon.model.configuration import flat
from trackside_daemon.model.families.training import STATES
from trackside_daemon.model.text import read_moment
from trackside_daemon.questions.opened_run import Keys, RunHistory, current, listed, reading

Moment = float | str | datetime

VARIABLE = "TRACKSIDE_STORAGE__PATH"  # variable of the daemon's setting
SHOWN_RUNS = 20  # runs that a notebook shows


class History:
    """A history, read from its file. It needs no daemon; one may write it meanwhile.

    Args:
        path: The directory of the history, or its file; None for the directory in which a daemon of this user
            writes by default.

    Raises:
        HistoryError: From each method, if there is no history, or it cannot be read.
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
            state: Only runs in this state, such as ``finished``.
            since: Only runs that began then or later: Unix seconds, a ``datetime``, or a text such as ``7d`` or ``2026-11-01``.
            until: Only runs that began then or earlier.
            order_by: ``loss``, ``config.lr``, ``summary.best``, a key, …. A ``-`` in front reverses the order. What is NaN or
                missing comes last.
            limit: Number of runs; 0 for all.

        Raises:
            ValueError: An argument is invalid; the message says how.
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
        """
        with reading(self.path) as connection:
            uid = reader.resolve(connection, run)
            return RunHistory(self.path, current(connection, reader.head(connection, uid)))

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

        Its columns are the facts of the runs, with datetimes in UTC, their settings as ``config.lr``, their results as
        ``summary.best``, and of each key ``loss.last``, ``loss.min`` and ``loss.max``: those of the lowest rank, as far as they
        are packed, so not yet of a run that has just begun. The other arguments, and the errors, are those of `runs`.

        Raises:
            UnknownKeyError: No run has one of *keys*.
        """
        from trackside_daemon.history.frames.optional_library import library

        pandas = library("pandas")
        rows = self._rows(_filter(since=since, until=until), query, order_by, limit)
        with reading(self.path) as connection:
            names = list(dict.fromkeys(listed(keys) or ()))
            known = set(run_query.keys(connection, None)) if names else set()
            for key in names:
                if key not in known:
                    raise reader.UnknownKeyError(f"key {key!r}: no run has it{near_name(key, known)}")
            values = run_query.values(connection, names) if names else {}
            configurations = run_query.configurations(connection)
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
        with reading(self.path) as connection:
            rows = [current(connection, run) for run in reader.runs(connection, wanted._replace(limit=early))]
            rows = run_query.select(connection, terms, rows).runs if terms else rows
            return (rows if as_listed else run_query.ordered(connection, rows, order_by))[: limit or None]


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
    found = {**facts, **(flat(config, "config") if config else {})}
    found |= flat(run["summary"], "summary") if run["summary"] else {}
    for key, of_key in values.items():
        found |= {f"{key}.{name}": None if value is None else float(value) for name, value in of_key.items()}
    return found
