"""Ask over the exported runs of all machines, with DuckDB.

Run as a module, it is the process that reads them for the fleet's page: DuckDB and pyarrow would take 100 MB of the daemon.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from glob import escape
from typing import Any, NamedTuple

import msgspec

from trackside_daemon.bridges.parquet import layout
from trackside_daemon.bridges.parquet.layout import schemas
from trackside_daemon.bridges.parquet.store import MISSING, SUFFIX, FileError, FileStore
from trackside_daemon.history.frames.optional_library import library
from trackside_daemon.http_client.errors import SendError, SettingError
from trackside_daemon.linux.worker_call import WorkLimits, serve
from trackside_daemon.linux.worker_process import ANSWER_BYTES
from trackside_daemon.model.metric import json_number
from trackside_daemon.model.records import ENDS

QUESTIONS = {
    "worst 20 runs by lost GPU hours": "SELECT name, run, host, state, round(lost_gpu_hours, 4) AS lost_gpu_hours, "
    "round(gpu_hours, 4) AS gpu_hours, causes[1].cause AS cause FROM runs WHERE NOT coalesce(list_contains(tags, 'benchmark'), false) ORDER BY runs.lost_gpu_hours DESC, run LIMIT 20",
    "lost GPU hours by cause": "SELECT one.cause AS cause, count(*) AS runs, round(sum(one.gpu_hours), 4) AS gpu_hours "
    "FROM (SELECT unnest(causes) AS one FROM runs) WHERE one.gpu_hours > 0 GROUP BY ALL ORDER BY sum(one.gpu_hours) DESC, cause",
    "lost GPU hours by month": "SELECT strftime(started, '%Y-%m') AS month, count(*) AS runs, round(sum(gpu_hours), 1) AS gpu_hours, "
    "round(sum(lost_gpu_hours), 1) AS lost_gpu_hours, round(sum(energy_kwh), 1) AS energy_kwh FROM runs GROUP BY month ORDER BY month",
    "lost GPU hours by user": 'SELECT "user", count(*) AS runs, round(sum(gpu_hours), 1) AS gpu_hours, '
    'round(sum(lost_gpu_hours), 1) AS lost_gpu_hours FROM runs GROUP BY "user" ORDER BY sum(runs.lost_gpu_hours) DESC',
    "worst 20 hosts by lost GPU hours": "SELECT host, count(*) AS runs, round(sum(gpu_hours), 1) AS gpu_hours, "
    "round(sum(lost_gpu_hours) / sum(gpu_hours), 3) AS lost_ratio FROM parts GROUP BY host "
    "ORDER BY sum(lost_gpu_hours) DESC, host LIMIT 20",
    "best 20 runs by loss": "SELECT name, run, loss, step, round(gpu_hours, 4) AS gpu_hours FROM runs "
    "WHERE isfinite(loss) ORDER BY loss, run LIMIT 20",
    "failed runs by cause": "SELECT cause, count(*) AS runs, round(sum(gpu_hours), 1) AS gpu_hours FROM runs "
    "WHERE state IN ('failed', 'lost') GROUP BY cause ORDER BY count(*) DESC, cause LIMIT 50",
    "alerts by name": "SELECT alert, severity, count(*) AS alerts, count(DISTINCT run) AS runs FROM alerts "
    "GROUP BY alert, severity ORDER BY count(*) DESC, alert LIMIT 50",
}
"""Prepared queries. A number in a question can be another one."""

MODULE = "trackside_daemon.bridges.parquet.fleet"
LIMITS = WorkLimits(quick_seconds=2.0)  # enough for a thousand runs
ROW_BYTES = 16 * 2**10  # of a run with its configuration
SPARE_BYTES = 64 * 2**10  # of an answer, beside the runs
_NEWEST = """
SELECT run AS id, name, coalesce("user", '') AS "user", coalesce(host, '') AS host, state, coalesce(cause, '') AS cause,
    epoch(started) AS started, epoch(ended) AS ended, coalesce(attempts, 1) AS attempt, step, loss, coalesce(tags, []) AS tags,
    if(length(config) <= 16384, config, '') AS config, if(length(summary) <= 16384, summary, '') AS summary,
    count(*) OVER () AS among
FROM runs ORDER BY runs.started DESC LIMIT 10000
"""

TRIES = 20  # queries while files are found bad or are replaced

_NUMBER = re.compile(r"\d+")


_PARTS = {"runs": "parts"}  # the table of a kind's files, if the table of its name is made of that
_RUNS = """
CREATE TABLE part AS
SELECT * REPLACE (greatest(ranks, 1) AS ranks), coalesce(ended >= arg_max(started, ended) OVER (PARTITION BY run), true) AS at_end
FROM parts;
CREATE VIEW runs AS WITH ahead AS (
    SELECT * EXCLUDE (at_end) FROM part
    QUALIFY row_number() OVER (PARTITION BY run ORDER BY step DESC NULLS LAST, ended DESC, host) = 1
), whole AS (
    SELECT run, CAST(max(attempts) FILTER (WHERE at_end) + coalesce(max(attempts) FILTER (WHERE NOT at_end), 0) AS INTEGER)
            AS attempts, min(started) AS started, max(ended) AS ended,
        first(name ORDER BY ended DESC) AS name, string_agg(DISTINCT host, ', ' ORDER BY host) AS host,
        first(state ORDER BY list_position(getvariable('ends'), state), ended) FILTER (WHERE at_end) AS state,
        first(cause ORDER BY list_position(getvariable('ends'), state), ended) FILTER (WHERE at_end) AS cause,
        CAST(sum(ranks) FILTER (WHERE at_end) AS INTEGER) AS ranks, sum(wall_seconds * ranks) AS rank_seconds,
        sum(gpu_hours) AS gpu_hours, sum(lost_gpu_hours) AS lost_gpu_hours, sum(energy_kwh) AS energy_kwh
    FROM part GROUP BY run
), accounts AS (
    SELECT run, map_from_entries(list({'key': key, 'value': seconds} ORDER BY key)) AS ledger
    FROM (
        SELECT run, entry.key AS key, sum(entry.value * part_ranks) / any_value(ranks) AS seconds
        FROM (SELECT run, ranks AS part_ranks, unnest(map_entries(ledger)) AS entry FROM part) JOIN whole USING (run)
        GROUP BY run, entry.key
    ) GROUP BY run
), reasons AS (
    SELECT run, list({'cause': cause, 'summary': summary, 'lost_seconds': lost_seconds, 'gpu_hours': gpu_hours}
        ORDER BY gpu_hours DESC NULLS LAST, cause) AS causes
    FROM (
        SELECT run, one.cause AS cause, first(one.summary ORDER BY one.gpu_hours DESC NULLS LAST) AS summary,
            sum(one.lost_seconds * part_ranks) / any_value(ranks) AS lost_seconds, sum(one.gpu_hours) AS gpu_hours
        FROM (SELECT run, ranks AS part_ranks, unnest(causes) AS one FROM part) JOIN whole USING (run)
        GROUP BY run, one.cause
    ) GROUP BY run
)
SELECT ahead.* REPLACE (
    whole.attempts AS attempts, whole.started AS started, whole.ended AS ended, whole.name AS name, whole.host AS host,
    whole.state AS state, whole.cause AS cause, whole.ranks AS ranks, whole.rank_seconds / whole.ranks AS wall_seconds,
    whole.gpu_hours AS gpu_hours, whole.lost_gpu_hours AS lost_gpu_hours, whole.energy_kwh AS energy_kwh,
    accounts.ledger AS ledger, coalesce(reasons.causes, []) AS causes
)
FROM ahead JOIN whole USING (run) LEFT JOIN accounts USING (run) LEFT JOIN reasons USING (run)
"""
"""One row for each run, from those of the machines that had ranks of it.

What adds up is added, seconds are means over all ranks. The state is the gravest of the ranks that were there at the end,
and what is known once is from the machine that got furthest.
"""


class QueryResult(NamedTuple):
    """The rows of an answer, the names of their columns, and a line for each file that was left out."""

    columns: list[str]
    rows: list[tuple[Any, ...]]
    left_out: list[str]


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


def ask(store: FileStore, sql: str, **limits: str | int) -> QueryResult:
    """Return the answer to a query over the tables runs, parts, samples and alerts.

    A file that cannot be read is left out, and so is what an archive of an earlier version has twice. *limits* are settings of DuckDB.

    Raises:
        ValueError: The query is wrong.
        LookupError: There are no runs.
        SendError: The store does not answer.
    """
    duckdb = library("duckdb", "fleet")
    kinds = [kind for kind in schemas() if re.search(rf"\b({kind}|{_PARTS.get(kind, kind)})\b", sql)]
    bad: dict[str, str] = {}
    for tries_left in reversed(range(TRIES)):
        names = _names(store, kinds, bad)
        try:
            columns, rows = _answer(duckdb.connect(config=limits), store, names, sql)
        except (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException) as error:
            raise _wrong(error) from None
        except duckdb.Error as error:
            is_of_query = isinstance(error, duckdb.DataError)  # as of a text that is no number
            named, faults = _faults(store, names, str(error), deep=not is_of_query)
            if not (named or faults) or not tries_left:
                raise _wrong(error) from None
            bad |= faults  # if it has none by now, it was replaced meanwhile
        else:
            return QueryResult(columns, rows, [f"{store.path}/{name} {reason}" for name, reason in sorted(bad.items())])
    raise AssertionError


def _wrong(error: Exception) -> ValueError:
    return ValueError(" ".join(str(error).split()))


def _names(store: FileStore, kinds: list[str], bad: dict[str, str]) -> dict[str, list[str]]:
    """Return the files of some kinds, without bad ones, and without those of runs that have no row."""
    places = [layout.place_of(one.name) for one in store.files_below("runs")]
    if not places:
        raise LookupError(
            f"{store.path}: no archived runs; write them with trackside archive, or with bridges.parquet.url"
        )
    wanted = set(places) - layout.superseded(store, places)
    names = {kind: [f"{kind}/{place}{SUFFIX}" for place in sorted(wanted)] for kind in kinds}
    for kind in set(kinds) - {"runs"}:
        there = {one.name for one in store.files_below(kind)}
        names[kind] = [name for name in names[kind] if name in there]
    return {kind: [name for name in found if name not in bad] for kind, found in names.items()}


def _answer(connection: Any, store: FileStore, names: dict[str, list[str]], sql: str) -> tuple[list[str], list[Any]]:
    try:
        connection.execute("SET TimeZone = 'UTC'")
        for kind, found in names.items():
            _add_table(connection, store, kind, found)
        if "runs" in names:
            parts = Counter(layout.split(layout.place_of(name)).run for name in names["runs"])
            connection.execute("SET VARIABLE ends = ?", [list(ENDS)])
            one_each = max(parts.values(), default=1) == 1
            connection.execute("CREATE VIEW runs AS SELECT * FROM parts" if one_each else _RUNS)
        found = connection.execute(sql)
        return [column[0] for column in found.description or ()], found.fetchall()
    finally:
        connection.close()


def _add_table(connection: Any, store: FileStore, kind: str, names: list[str]) -> None:
    """Add the files of a kind as a table; an empty one if there are none."""
    table, schema = _PARTS.get(kind, kind), schemas()[kind]
    if store.local:  # DuckDB expects the columns of the first file in all
        good = next((place for place, name in enumerate(names) if not _fault(store, kind, name)), 0)
        names = [*names[good : good + 1], *names[:good], *names[good + 1 :]]
    paths = [f"{store.path}/{name}" for name in names]
    if not paths:
        connection.register(table, schema.empty_table())
    elif store.local:
        files = ", ".join("'" + escape(path).replace("'", "''") + "'" for path in paths)
        connection.execute(
            f"CREATE VIEW {table} AS SELECT * FROM read_parquet([{files}], hive_partitioning = false)"  # noqa: S608  a view takes no parameters, and the quotes in the paths are doubled
        )
    else:
        # pyarrow reads object stores with what it has; DuckDB would have to download an extension.
        files = library("pyarrow.dataset").dataset(paths, schema=schema, filesystem=store.files, format="parquet")
        connection.register(table, files)


def _fault(store: FileStore, kind: str, name: str, *, deep: bool = False) -> str:
    """Return why a file cannot be read; empty if it can."""
    try:
        store.read_back(name, schemas()[kind].names, deep=deep)
    except FileError as error:
        return str(error)
    return ""


def _faults(store: FileStore, names: dict[str, list[str]], error: str, *, deep: bool) -> tuple[bool, dict[str, str]]:
    """Return whether an error names files, and which files cannot be read, with the reasons.

    Args:
        store: The store of the files.
        names: The files that were read, by kind.
        error: The text of the error.
        deep: Read all files if neither the error names one nor a footer is damaged.
    """
    files = [(kind, name) for kind, found in names.items() for name in found]
    if named := [(kind, name) for kind, name in files if name in error]:
        searches = [(named, True)]
    else:
        searches = [(files, False), *([(files, True)] if deep else [])]
    for some, is_deep in searches:
        reasons = {name: _fault(store, kind, name, deep=is_deep) for kind, name in some}
        if faults := {name: reason for name, reason in reasons.items() if reason and reason != MISSING}:
            return bool(named), faults
    return bool(named), {}


class Archived(msgspec.Struct):
    """Runs as the list of runs has them, and a line for each file that was left out."""

    runs: list[dict[str, Any]] = []
    left_out: list[str] = []


def read(url: str) -> Archived:
    """Return the newest runs of an archive, as many as have room in an answer.

    Raises:
        LookupError, ModuleNotFoundError, SendError, SettingError: It has none, or cannot be read.
    """
    found = ask(FileStore(url), _NEWEST, memory_limit="1GB", threads=2)
    runs = list(_fitting(dict(zip(found.columns, row, strict=True)) for row in found.rows))
    more = found.rows[0][-1] - len(runs) if found.rows else 0
    return Archived(runs, [f"{more:,} runs for which there is no room"] * bool(more) + found.left_out)


def _fitting(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the runs for which there is room; one of a very large configuration without that."""
    room = ANSWER_BYTES - SPARE_BYTES
    for row in rows:
        del row["among"]
        run = row | {name: _json(row[name]) for name in ("config", "summary")}
        run["loss"] = run["loss"] if run["loss"] is None else json_number(run["loss"])
        size = len(msgspec.json.encode(run))
        if size > ROW_BYTES:
            run |= {"config": {}, "summary": {}, "tags": []}
            size = len(msgspec.json.encode(run))
        if size <= min(room, ROW_BYTES):
            room -= size + 1
            yield run


def _json(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):  # as of very many brackets
        return {}
    return found if isinstance(found, dict) else {}


def main() -> int:
    """Answer requests until the end of the input."""
    expected = (LookupError, ModuleNotFoundError, SendError, SettingError, ValueError)
    return serve(str, read, lambda _: LIMITS, expected)


if __name__ == "__main__":
    sys.exit(main())
