"""The process that reads the archived runs for the fleet's page: ``python -m trackside_daemon.bridges.parquet.archived``.

DuckDB and pyarrow would take 100 MB of the daemon.
"""

import json
import sys
from typing import Any

from trackside_daemon.bridges.parquet.archived_request import Archived, ArchiveRequest
from trackside_daemon.bridges.parquet.fleet import ask
from trackside_daemon.bridges.parquet.store import FileStore
from trackside_daemon.http_client.errors import SendError, SettingError
from trackside_daemon.linux.worker_call import serve
from trackside_daemon.model.metric import json_number

SQL = (
    'SELECT run, name, "user", host, state, cause, epoch(started), epoch(ended), attempts, step, loss, tags, config, summary '
    "FROM runs ORDER BY started DESC LIMIT 10000"
)


def read(request: ArchiveRequest) -> Archived:
    """Return the newest runs of an archive.

    Raises:
        LookupError, ModuleNotFoundError, SendError, SettingError: It has none, or cannot be read.
    """
    found = ask(FileStore(request.url), SQL)
    return Archived([_row(row) for row in found.rows], found.left_out)


def _row(row: tuple[Any, ...]) -> dict[str, Any]:
    run, name, user, host, state, cause, started, ended, attempts, step, loss, tags, config, summary = row
    return {
        "id": run,
        "name": name,
        "user": user or "",
        "host": host or "",
        "state": state,
        "cause": cause or "",
        "started": started or 0.0,
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
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def main() -> int:
    """Answer requests until the end of the input."""
    return serve(ArchiveRequest, read, expected=(LookupError, ModuleNotFoundError, SendError, SettingError, ValueError))


if __name__ == "__main__":
    sys.exit(main())
