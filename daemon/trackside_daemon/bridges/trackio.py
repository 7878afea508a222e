"""Read the runs in a database of trackio, which has one for each project."""

import json
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from trackside_daemon.bridges.foreign_run import MAX_RUNS, ForeignRun
from trackside_daemon.bridges.sqlite_file import reading, rows
from trackside_daemon.bridges.wandb.log_run import flattened
from trackside_daemon.history.files.items import Push
from trackside_daemon.history.files.json_format import number
from trackside_daemon.history.files.left_out import DAMAGED_ROW, NO_NUMBER

TABLES = {"metrics", "configs"}


class TrackioRun(ForeignRun):
    """A run of trackio.

    Args:
        path: The database of its project.
        name: Its name.
        key: Its id, or its name in databases of older versions; *column* has it.
        column: ``run_id`` or ``run_name``.
    """

    def __init__(self, path: Path, name: str, key: str, column: str) -> None:
        super().__init__(key if column == "run_id" else f"{path.stem}/{key}", name, f"{path} ({name})", "trackio")
        self.paths = [path, path.with_name(f"{path.name}-wal")]
        self._path, self._key, self._column = path, key, column

    def read(self, *, final: bool = True) -> Iterator[Push]:
        """See `ForeignRun`."""
        del final
        where = f"WHERE {self._column} = ?"
        for (config,) in rows(self._path, f"SELECT config FROM configs {where}", (self._key,), self.left_out):  # noqa: S608
            self.config.update({key: value for key, value in self._object(config).items() if not key.startswith("_")})
        query = f"SELECT timestamp, step, metrics FROM metrics {where} ORDER BY id"  # noqa: S608
        for timestamp, step, metrics in rows(self._path, query, (self._key,), self.left_out):
            values: dict[str, float] = {}
            for key, value in flattened(self._object(metrics)):
                try:
                    values[key] = number(value)
                except (TypeError, ValueError, OverflowError):
                    self.left_out.add(NO_NUMBER, key)
            if not isinstance(step, int):
                self.left_out.add(DAMAGED_ROW, f"step {step!r}"[:60])
            elif values and (push := self.push(0, step, _seconds(timestamp), values)) is not None:
                yield push

    def _object(self, text: str) -> dict[str, Any]:
        """Return the object of a text, or else an empty one, and count that."""
        try:
            value = json.loads(text)
        except (ValueError, TypeError, RecursionError):
            value = None
        if isinstance(value, dict):
            return value
        self.left_out.add(DAMAGED_ROW)
        return {}


def trackio_runs(path: Path) -> list[TrackioRun]:
    """Return the runs in a database, oldest first.

    Raises:
        ForeignRunError: The file cannot be read.
    """
    with reading(path) as connection:
        columns = {row[1] for row in connection.execute("PRAGMA table_info(metrics)")}
        column = "run_id" if "run_id" in columns else "run_name"
        query = f"SELECT {column}, max(run_name) FROM metrics GROUP BY {column} ORDER BY min(id)"  # noqa: S608
        found = connection.execute(query).fetchmany(MAX_RUNS)
    return [TrackioRun(path, str(name), str(key), column) for key, name in found]


def _seconds(text: str) -> float:
    """Return the Unix time of an ISO date, which is in UTC if it has no zone; NaN for other texts."""
    try:
        moment = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        return float("nan")
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
