"""Ask over the exported runs of all machines, with DuckDB."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from trackside_daemon.bridges.parquet.schema import schemas
from trackside_daemon.history.frames.optional_library import library

if TYPE_CHECKING:
    from trackside_daemon.bridges.parquet.store import Store

QUESTIONS = {
    "worst 20 runs by lost GPU hours": "SELECT name, run, host, state, round(lost_gpu_hours, 4) AS lost_gpu_hours, "
    "round(gpu_hours, 4) AS gpu_hours, causes[1].cause AS cause FROM runs ORDER BY runs.lost_gpu_hours DESC, run LIMIT 20",
    "lost GPU hours by cause": "SELECT one.cause AS cause, count(*) AS runs, round(sum(one.gpu_hours), 4) AS gpu_hours "
    "FROM (SELECT unnest(causes) AS one FROM runs) WHERE one.gpu_hours > 0 GROUP BY ALL ORDER BY sum(one.gpu_hours) DESC, cause",
    "lost GPU hours by month": "SELECT strftime(started, '%Y-%m') AS month, count(*) AS runs, round(sum(gpu_hours), 1) AS gpu_hours, "
    "round(sum(lost_gpu_hours), 1) AS lost_gpu_hours, round(sum(energy_kwh), 1) AS energy_kwh FROM runs GROUP BY month ORDER BY month",
    "lost GPU hours by user": 'SELECT "user", count(*) AS runs, round(sum(gpu_hours), 1) AS gpu_hours, '
    'round(sum(lost_gpu_hours), 1) AS lost_gpu_hours FROM runs GROUP BY "user" ORDER BY sum(runs.lost_gpu_hours) DESC',
    "worst 20 hosts by lost GPU hours": "SELECT host, count(*) AS runs, round(sum(gpu_hours), 1) AS gpu_hours, "
    "round(sum(lost_gpu_hours) / sum(gpu_hours), 3) AS lost_ratio FROM runs GROUP BY host "
    "ORDER BY sum(lost_gpu_hours) DESC, host LIMIT 20",
    "best 20 runs by loss": "SELECT name, run, loss, step, round(gpu_hours, 4) AS gpu_hours FROM runs "
    "WHERE isfinite(loss) ORDER BY loss, run LIMIT 20",
    "failed runs by cause": "SELECT cause, count(*) AS runs, round(sum(gpu_hours), 1) AS gpu_hours FROM runs "
    "WHERE state IN ('failed', 'lost') GROUP BY cause ORDER BY count(*) DESC, cause LIMIT 50",
    "alerts by name": "SELECT alert, severity, count(*) AS alerts, count(DISTINCT run) AS runs FROM alerts "
    "GROUP BY alert, severity ORDER BY count(*) DESC, alert LIMIT 50",
}
"""Prepared queries. A number in a question can be another one."""

_NUMBER = re.compile(r"\d+")


class Answer(NamedTuple):
    """The rows of an answer, and the names of their columns."""

    columns: list[str]
    rows: list[tuple[Any, ...]]


def prepared(question: str) -> str:
    """Return the SQL of a prepared question.

    Raises:
        LookupError: There is no such question.
    """
    words = " ".join(question.lower().split())
    for known, sql in QUESTIONS.items():
        if _NUMBER.sub("#", known.lower()) == _NUMBER.sub("#", words):
            number = _NUMBER.search(words)
            return re.sub(r"LIMIT 20$", f"LIMIT {int(number[0])}", sql) if number else sql
    raise LookupError(f"{question!r}: no prepared question; write one of: {', '.join(QUESTIONS)}; or --sql")


def ask(store: Store, sql: str) -> Answer:
    """Return the answer to a query over the tables runs, samples and alerts.

    Raises:
        ValueError: The query is wrong.
        LookupError: There are no runs.
    """
    duckdb = library("duckdb", "fleet")
    connection = duckdb.connect()
    try:
        connection.execute("SET TimeZone = 'UTC'")
        for kind, schema in schemas().items():
            if re.search(rf"\b{kind}\b", sql):
                _add_table(connection, store, kind, schema)
        found = connection.execute(sql)
        return Answer([column[0] for column in found.description or ()], found.fetchall())
    except duckdb.Error as error:
        raise ValueError(" ".join(str(error).split())) from None
    finally:
        connection.close()


def _add_table(connection: Any, store: Store, kind: str, schema: Any) -> None:
    """Add a kind of files as a table; an empty one if there are none."""
    path = f"{store.path}/{kind}"
    selector = library("pyarrow.fs").FileSelector(path, allow_not_found=True)
    if not store.files.get_file_info(selector):
        if kind == "runs":
            raise LookupError(
                f"{store.path}: no archived runs; write them with trackside archive, or with bridges.parquet.url"
            )
        connection.register(kind, schema.empty_table())
    elif store.local:
        pattern = f"{path}/*/*/*.parquet".replace("'", "''")
        connection.execute(f"CREATE VIEW {kind} AS SELECT * FROM read_parquet('{pattern}', hive_partitioning = false)")  # noqa: S608  a view takes no parameters, and the quotes in the path are doubled
    else:
        # pyarrow reads object stores with what it has; DuckDB would have to download an extension.
        files = library("pyarrow.dataset").dataset(path, schema=schema, filesystem=store.files, format="parquet")
        connection.register(kind, files)
