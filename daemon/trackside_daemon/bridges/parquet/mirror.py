"""Write the files of a run that has ended: its samples, its alerts, and one row with its facts, which comes last."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from trackside_daemon.bridges.parquet.schema import VERSION, schemas
from trackside_daemon.bridges.parquet.store import Store
from trackside_daemon.diagnosis.diagnosis import diagnose
from trackside_daemon.diagnosis.settings import CostSection
from trackside_daemon.history.files.jsonl import folder
from trackside_daemon.history.frames.optional_library import library
from trackside_daemon.history.frames.rank_series import read_parts
from trackside_daemon.history.read import alert_reader, reader
from trackside_daemon.history.read.series import LogTail, find

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

    from trackside_daemon.bridges.mirrors.target import MirroredRun

GROUP_ROWS = 60_000  # rows that are in memory, and in a row group
STAMP = b"trackside.end"  # entry of a file's metadata: the end of the run that it has


class ParquetFiles:
    """See `trackside_daemon.bridges.mirrors.target.RunTarget`.

    Args:
        store: The place of the files.
    """

    machine = False

    def __init__(self, store: Store) -> None:
        self.store = store
        self._schemas = schemas()

    def write(self, connection: sqlite3.Connection, run: MirroredRun) -> int | None:
        """See `RunTarget`."""
        place = _place(run)
        if self.store.metadata(f"runs/{place}").get(STAMP) == _stamp(run):
            return None
        count = self._write(run, "samples", _groups(connection, run.id, self._schemas["samples"]))
        alerts = alert_reader.alerts(connection, alert_reader.AlertFilter(run.id, limit=-1, evidence=False))
        if alerts:
            self._write(run, "alerts", [self._table("alerts", [_alert(run.id, alert) for alert in alerts])])
        self._write(run, "runs", [self._table("runs", [_facts(connection, run)])])  # last: it says that all is there
        return count

    def close(self) -> None:
        """See `RunTarget`."""

    def _write(self, run: MirroredRun, kind: str, tables: Any) -> int:
        parquet = library("pyarrow.parquet")
        schema = self._schemas[kind].with_metadata({STAMP: _stamp(run), b"trackside.version": b"%d" % VERSION})
        own = (
            {}
            if kind != "samples"
            else {
                "use_dictionary": ["run", "key", "attempt", "rank"],
                "column_encoding": {
                    "value": "BYTE_STREAM_SPLIT",
                    "step": "DELTA_BINARY_PACKED",
                    "time": "DELTA_BINARY_PACKED",
                },
            }
        )
        count = 0
        with (
            self.store.writing(f"{kind}/{_place(run)}") as stream,
            parquet.ParquetWriter(stream, schema, compression="zstd", compression_level=1, **own) as writer,
        ):
            for table in tables:
                writer.write_table(table)
                count += len(table)
        return count

    def _table(self, kind: str, rows: list[dict[str, Any]]) -> Any:
        return library("pyarrow").Table.from_pylist(rows, schema=self._schemas[kind])


def make_target(settings: dict[str, Any]) -> ParquetFiles:
    """Return the target for some settings.

    Raises:
        SettingError: The address cannot be used, or a library is not installed.
    """
    store = Store(settings["url"])
    arrow = library("pyarrow")
    arrow.set_memory_pool(arrow.system_memory_pool())  # its own allocators keep what they freed: 50 MiB more
    return ParquetFiles(store)


def _place(run: MirroredRun) -> str:
    """Return the path of a run's file below that of its kind: partitions by date and name, as Hive writes them."""
    date = datetime.fromtimestamp(run.started, timezone.utc).strftime("%Y-%m-%d")
    name = quote(run.name[:80], safe="") or "__HIVE_DEFAULT_PARTITION__"
    return f"date={date}/name={name}/{folder(run.id)}.parquet"


def _stamp(run: MirroredRun) -> bytes:
    return f"{VERSION} {run.end} {run.state}".encode()


def _groups(connection: sqlite3.Connection, uid: str, schema: Any) -> Iterator[Any]:
    """Yield the samples of a run, by attempt, rank and key, in tables of at most about `GROUP_ROWS` rows."""
    arrow = library("pyarrow")
    waiting: list[Any] = []
    rows = 0
    streams = connection.execute(
        "SELECT stream.id, attempt, rank FROM stream JOIN run ON run.id = stream.run WHERE uid = ? ORDER BY attempt, rank",
        (uid,),
    ).fetchall()
    for stream, attempt, rank in streams:
        tail = LogTail(connection, stream)
        for series in find(connection, stream, tail):
            for steps, times, values in read_parts(connection, series, tail, GROUP_ROWS):
                constants = (uid, attempt, rank, _text(series.key))
                columns = [
                    *(
                        arrow.repeat(arrow.scalar(one, field.type), len(steps))
                        for one, field in zip(constants, schema, strict=False)
                    ),
                    arrow.array(steps),
                    arrow.array(times).view(schema.field("time").type),
                    arrow.array(values),
                ]
                waiting.append(arrow.Table.from_arrays(columns, schema=schema))
                rows += len(steps)
                if rows >= GROUP_ROWS:
                    yield arrow.concat_tables(waiting)
                    waiting, rows = [], 0
    if waiting:
        yield arrow.concat_tables(waiting)


def _facts(connection: sqlite3.Connection, run: MirroredRun) -> dict[str, Any]:
    found = reader.run(connection, run.id, 0)  # also counts what is not packed yet
    diagnosis = diagnose(connection, run.id, CostSection())
    costs, last = diagnosis["costs"], found["attempt_list"][-1] if found["attempt_list"] else {}
    wall = diagnosis["wall_seconds"]
    lost = costs["gpu_hours"] * min(1.0, costs["wasted_hours"] * 3600 / wall) if wall else 0.0
    fields = ("name", "user", "state", "cause", "step", "tags")
    loss = found["loss"]
    return {
        **{field: found[field] for field in fields},
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


def _alert(uid: str, alert: dict[str, Any]) -> dict[str, Any]:
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
