"""Read the contents of a run's files from the history: its samples in tables, its row, and those of its alerts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from trackside_daemon.bridges.parquet.layout import VERSION
from trackside_daemon.diagnosis.diagnosis import diagnose
from trackside_daemon.diagnosis.settings import CostSection
from trackside_daemon.history.frames.optional_library import library
from trackside_daemon.history.frames.rank_series import read_parts
from trackside_daemon.history.read import reader
from trackside_daemon.history.read.series import LogTail, find
from trackside_daemon.history.schema import BLOCK_BITS

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator

    from trackside_daemon.bridges.mirrors.target import MirroredRun
    from trackside_daemon.history.frames.rank_series import Integers
    from trackside_daemon.history.read.series import StoredSeries

GROUP_ROWS = 60_000  # rows that are in memory, and in a row group


class SampleTables:
    """The samples of a run, by attempt, rank and key, in tables of at most about `GROUP_ROWS` rows.

    Args:
        connection: In a transaction.
        uid: The run's id.
        schema: That of the tables.
        earlier: Returns the samples of a series that were written before, by its attempt, rank and key; None for none.

    Attributes:
        lost: The samples that the history has deleted, and that were not written before.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        uid: str,
        schema: Any,
        earlier: Callable[[tuple[int, int, str]], Any] | None,
    ) -> None:
        self.lost = 0
        self._connection = connection
        self._uid = uid
        self._schema = schema
        self._earlier = earlier

    def __iter__(self) -> Iterator[Any]:
        waiting: list[Any] = []
        rows = 0
        for table in self._tables():
            waiting.append(table)
            rows += len(table)
            if rows >= GROUP_ROWS:
                yield library("pyarrow").concat_tables(waiting)
                waiting, rows = [], 0
        if waiting:
            yield library("pyarrow").concat_tables(waiting)

    def _tables(self) -> Iterator[Any]:
        streams = self._connection.execute(
            "SELECT stream.id, attempt, rank FROM stream JOIN run ON run.id = stream.run WHERE uid = ? ORDER BY attempt, rank",
            (self._uid,),
        ).fetchall()
        for stream, attempt, rank in streams:
            tail = LogTail(self._connection, stream)
            for series in find(self._connection, stream, tail):
                names = (attempt, rank, _text(series.key))
                tables = (
                    self._table((self._uid, *names), *columns)
                    for columns in read_parts(self._connection, series, tail, GROUP_ROWS)
                )
                if deleted := self._deleted(series):
                    first = next(tables, None)
                    kept = self._kept(names, deleted, first)
                    self.lost += deleted - len(kept)
                    yield from (table for table in (kept, first) if table is not None)
                yield from tables

    def _deleted(self, series: StoredSeries) -> int:
        """Return the number of a series' first samples that the history has deleted: storage.retention.size."""
        ids = (series.id << BLOCK_BITS, series.id + 1 << BLOCK_BITS)
        query = "SELECT coalesce(sum(count), 0) FROM block WHERE id >= ? AND id < ? AND data IS NULL"
        return int(self._connection.execute(query, ids).fetchone()[0])

    def _kept(self, names: tuple[int, int, str], deleted: int, first: Any) -> Any:
        """Return what was written before of a series' deleted samples: it ends where the first left one follows."""
        if self._earlier is None:
            return self._schema.empty_table()
        found = self._earlier(names)
        if first is not None:
            same = [_bits(found[name]) == _bits(first[name])[0] for name in ("step", "time", "value")]
            (places,) = np.nonzero(np.logical_and.reduce(same)[: deleted + 1])
            deleted = int(places[-1]) if len(places) else deleted
        return found.slice(0, deleted)

    def _table(self, constants: tuple[Any, ...], steps: Any, times: Any, values: Any) -> Any:
        arrow = library("pyarrow")
        repeated = (
            arrow.repeat(arrow.scalar(one, field.type), len(steps))
            for one, field in zip(constants, self._schema, strict=False)
        )
        time = arrow.array(times).view(self._schema.field("time").type)
        return arrow.Table.from_arrays([*repeated, arrow.array(steps), time, arrow.array(values)], schema=self._schema)


def run_row(connection: sqlite3.Connection, run: MirroredRun) -> dict[str, Any]:
    """Return the row of a run in ``runs``."""
    found = reader.run(connection, run.id, 0)  # also counts what is not packed yet
    diagnosis = diagnose(connection, run.id, CostSection())
    costs, last = diagnosis["costs"], found["attempt_list"][-1] if found["attempt_list"] else {}
    wall = diagnosis["wall_seconds"]
    lost = costs["gpu_hours"] * min(1.0, costs["wasted_hours"] * 3600 / wall) if wall else 0.0
    loss = found["loss"]
    return {
        **{field: _text(found[field]) for field in ("name", "user", "state", "cause")},
        "step": found["step"],
        "tags": list(map(_text, found["tags"])),
        "version": VERSION,
        "run": run.id,
        "host": last.get("host"),
        "started": _microseconds(found["started"]),
        "ended": _microseconds(found["ended"]),
        "attempts": len(found["attempt_list"]),
        "ranks": diagnosis["ranks"],
        "loss": None if loss is None else float(loss),
        "config": _text(json.dumps(run.config)),
        "summary": _text(json.dumps(found.get("summary") or {})),
        "git_commit": last.get("git_commit"),
        "framework": last.get("framework"),
        "wall_seconds": wall,
        "gpu_hours": costs["gpu_hours"],
        "lost_gpu_hours": lost,
        "energy_kwh": costs["energy_kwh"],
        "ledger": list(diagnosis["ledger"].items()),
        "causes": [
            {field: cause[field] for field in ("cause", "summary", "lost_seconds", "gpu_hours")}
            for cause in diagnosis["causes"]
        ],
    }


def alert_row(uid: str, alert: dict[str, Any]) -> dict[str, Any]:
    """Return the row of an alert of a run in ``alerts``."""
    fields = ("alert", "severity", "summary", "description")
    return {
        **{field: _text(alert[field]) for field in fields},
        "run": uid,
        "started": _microseconds(alert["started"]),
        "ended": _microseconds(alert["ended"]),
        "labels": msgspec.json.encode(alert["labels"]).decode(),
    }


def _text(text: str) -> str:
    """Return a text that UTF-8 can hold: half a surrogate pair, which JSON can escape, becomes a question mark."""
    return text.encode("utf-8", "replace").decode()


def _microseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e6)


def _bits(column: Any) -> Integers:
    """Return a column of eight bytes each as integers: NaN would not equal itself."""
    found: Integers = column.to_numpy().view(np.int64)
    return found
