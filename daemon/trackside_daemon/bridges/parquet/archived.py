"""The process that reads the archived runs for the fleet's page: ``python -m trackside_daemon.bridges.parquet.archived``.

DuckDB and pyarrow would take 100 MB of the daemon.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import msgspec

from trackside_daemon.bridges.parquet.fleet import ask
from trackside_daemon.bridges.parquet.store import FileStore
from trackside_daemon.http_client.errors import SendError, SettingError
from trackside_daemon.linux.worker_call import WorkLimits, serve
from trackside_daemon.linux.worker_process import ANSWER_BYTES
from trackside_daemon.model.metric import json_number

MODULE = "trackside_daemon.bridges.parquet.archived"
LIMITS = WorkLimits(quick_seconds=2.0)  # enough for a thousand runs
ROW_BYTES = 16 * 2**10  # of a run with its configuration
SPARE_BYTES = 64 * 2**10  # of an answer, beside the runs
SQL = (
    'SELECT run, name, "user", host, state, cause, epoch(started), epoch(ended), attempts, step, loss, tags, '
    "if(length(config) <= 16384, config, ''), if(length(summary) <= 16384, summary, ''), count(*) OVER () "
    "FROM runs ORDER BY started DESC LIMIT 10000"
)


class ArchiveRequest(msgspec.Struct):
    """A question for the runs of an archive, by its address."""

    url: str


class Archived(msgspec.Struct):
    """Runs as the list of runs has them, and a line for each file that was left out."""

    runs: list[dict[str, Any]] = []
    left_out: list[str] = []


def read(request: ArchiveRequest) -> Archived:
    """Return the newest runs of an archive, as many as have room in an answer.

    Raises:
        LookupError, ModuleNotFoundError, SendError, SettingError: It has none, or cannot be read.
    """
    found = ask(FileStore(request.url), SQL, memory_limit="1GB", threads=2)
    runs = list(_fitting(found.rows))
    more = found.rows[0][-1] - len(runs) if found.rows else 0
    return Archived(runs, [f"{more:,} runs for which there is no room"] * bool(more) + found.left_out)


def _fitting(rows: list[tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """Yield the rows for which there is room; one of a very large configuration without that."""
    room = ANSWER_BYTES - SPARE_BYTES
    for row in rows:
        run = _row(row)
        size = len(msgspec.json.encode(run))
        if size > ROW_BYTES:
            run |= {"config": {}, "summary": {}, "tags": []}
            size = len(msgspec.json.encode(run))
        if size <= min(room, ROW_BYTES):
            room -= size + 1
            yield run


def _row(row: tuple[Any, ...]) -> dict[str, Any]:
    run, name, user, host, state, cause, started, ended, attempts, step, loss, tags, config, summary, _ = row
    return {
        "id": run,
        "name": name,
        "user": user or "",
        "host": host or "",
        "state": state,
        "cause": cause or "",
        "started": started,
        "ended": ended,
        "attempt": attempts or 1,
        "step": step,
        "loss": None if loss is None else json_number(loss),
        "tags": tags or [],
        "config": _json(config),
        "summary": _json(summary),
        "notes": "",
        "pinned": False,
    }


def _json(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):  # as of very many brackets
        return {}
    return found if isinstance(found, dict) else {}


def main() -> int:
    """Answer requests until the end of the input."""
    expected = (LookupError, ModuleNotFoundError, SendError, SettingError, ValueError)
    return serve(ArchiveRequest, read, lambda _: LIMITS, expected)


if __name__ == "__main__":
    sys.exit(main())
