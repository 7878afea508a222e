"""Read the runs in a SQLite database of MLflow."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from trackside_daemon.bridges.foreign_run import MAX_KEYS, MAX_RUNS
from trackside_daemon.bridges.mlflow.tracked_run import TrackedRun, restored
from trackside_daemon.bridges.sqlite_file import reading, rows, tables
from trackside_daemon.history.files.left_out import DAMAGED_ROW

TABLES = {"runs", "metrics", "params", "tags", "experiments"}


class DatabaseRun(TrackedRun):
    """A run in a database.

    Args:
        path: The database.
        id: The run's id.
        fields: See `TrackedRun`.
    """

    def __init__(self, path: Path, id: str, fields: dict[str, str]) -> None:  # noqa: A002  the field's word
        super().__init__(id, f"{path} ({id})", fields)
        self.paths = [path, path.with_name(f"{path.name}-wal")]
        self._path = path

    def _described(self) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        params, tags = (list(self._texts_of(table)) for table in ("params", "tags"))
        return params, tags

    def _texts_of(self, table: str) -> Iterator[tuple[str, str]]:
        query = f"SELECT key, value FROM {table} WHERE run_uuid = ?"  # noqa: S608
        for key, value in islice(rows(self._path, query, (self.id,), self.left_out), MAX_KEYS):
            yield str(key), str(value)

    def _metrics(self) -> list[str]:
        queries = [
            f"SELECT DISTINCT key FROM {table} WHERE run_uuid = ?"  # noqa: S608
            for table in sorted({"latest_metrics", "metrics"} & tables(self._path))  # one may be damaged
        ]
        found = {str(key) for query in queries for (key,) in rows(self._path, query, (self.id,), self.left_out)}
        return sorted(found)[:MAX_KEYS]

    def _samples(self, key: str, *, final: bool) -> Iterator[tuple[int, int, float]]:
        del final
        query = (
            "SELECT step, timestamp, value, is_nan FROM metrics WHERE run_uuid = ? AND key = ? ORDER BY timestamp, step"
        )
        for step, time, value, nan in rows(self._path, query, (self.id, key), self.left_out):
            if isinstance(step, int) and isinstance(time, int) and isinstance(value, int | float):
                yield step, time, restored(float(value), is_nan=bool(nan))
            else:
                self.left_out.add(DAMAGED_ROW, key)


def database_runs(path: Path) -> list[DatabaseRun]:
    """Return the runs in a database, oldest first, without deleted ones.

    Raises:
        ForeignRunError: The file cannot be read.
    """
    query = "SELECT run_uuid, name, status, user_id FROM runs WHERE lifecycle_stage != 'deleted' ORDER BY start_time"
    with reading(path) as connection:
        found = connection.execute(query).fetchmany(MAX_RUNS)
    return [
        DatabaseRun(path, str(id_), {"name": name, "status": status, "user_id": user})
        for id_, name, status, user in found
    ]
