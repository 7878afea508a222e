"""Archives of runs: written as a daemon or `trackside archive` does, and read back."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from trackside_daemon.bridges.mirrors.unsent import mirrored_runs
from trackside_daemon.bridges.parquet.fleet import ask
from trackside_daemon.bridges.parquet.mirror import make_target
from trackside_daemon.bridges.parquet.store import FileStore
from trackside_daemon.history.database import FILE, open_reader

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trackside_daemon.bridges.parquet.mirror import ParquetFiles

KINDS = ("runs", "samples", "alerts")


def write(directory: Path | str, url: Path | str, target: ParquetFiles | None = None) -> dict[str, int | None]:
    """Write all runs that have ended; return the number of samples of each, by its id."""
    target = target or make_target({"url": str(url)})
    connection = open_reader(os.fspath(directory) + f"/{FILE}")  # type: ignore[arg-type]
    try:
        connection.execute("BEGIN")
        return {
            run.id: target.write(connection, run) for run in mirrored_runs(connection, None) if run.ended is not None
        }
    finally:
        connection.close()


def path_of(place: Path, kind: str, run: str) -> Path:
    """Return the only file of a run."""
    (found,) = (place / kind).rglob(f"{run}[@.]*parquet")
    return found


def files(place: Path) -> dict[str, tuple[int, int]]:
    """Return inode and size of the files below a place, by their paths."""
    found = [path for path in place.rglob("*") if path.is_file()]
    return {str(path.relative_to(place)): (path.stat().st_ino, path.stat().st_size) for path in found}


def answer(place: Path | str, sql: str) -> list[tuple[Any, ...]]:
    """Return the rows of an answer, for which no file was left out."""
    found = ask(FileStore(str(place)), sql)
    assert found.left_out == []
    return found.rows


def as_before(place: Path, names: Mapping[str, str] | None = None) -> None:
    """Give the files of an archive the names and the footers that they had before several machines could write them.

    Args:
        place: The archive.
        names: Names of runs by their ids, for the folders of their files.
    """
    for kind in KINDS:
        for path in list((place / kind).rglob("*@*.parquet")):
            run = path.name.partition("@")[0]
            folder = path.parent if run not in (names or {}) else path.parents[1] / f"name={(names or {})[run]}"
            folder.mkdir(exist_ok=True)
            table = pq.ParquetFile(path).read()
            old = {key: table.schema.metadata[key] for key in (b"trackside.end", b"trackside.version")}
            pq.write_table(table.replace_schema_metadata(old), folder / f"{run}.parquet")
            path.unlink()
