"""The command archive: write ended runs as Parquet files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from trackside_daemon.cli.errors import CommandError, errors_reported
from trackside_daemon.cli.options import StoragePath
from trackside_daemon.cli.output import print_lines
from trackside_daemon.model.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def archive(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="A directory, or an address such as s3://BUCKET/PREFIX.", show_default=False
        ),
    ],
    *,
    storage_path: StoragePath = None,
) -> None:
    """Write the runs that have ended as Parquet files, for `trackside fleet` and everything else that reads Parquet.

    What the target has is left as it is. A file is complete or not there, whatever happens. The daemon does the same by
    itself with bridges.parquet.url; needs trackside[arrow].
    """
    with errors_reported():
        print_lines(_write(target, storage_path))


def _write(target: str, storage_path: Path | None) -> Iterator[str]:
    from trackside_daemon.bridges.mirrors.unsent import mirrored_runs
    from trackside_daemon.bridges.parquet.mirror import make_target
    from trackside_daemon.history.read.offline import Offline
    from trackside_daemon.http_client.errors import SendError, SettingError

    try:
        files = make_target({"url": target})
        history = Offline(storage_path or _directory(), lambda line: typer.echo(line, err=True))
        written = samples = 0
        with history.reading() as connection:
            runs = [run for run in mirrored_runs(connection, None) if run.ended is not None]
        for run in runs:
            with history.reading() as connection:  # one transaction for each run, so that the WAL can shrink
                count = files.write(connection, run)
            if count is not None:
                yield f"{shown(run.name)} ({shown(run.id)}): {count:,} samples"
                written += 1
                samples += count
    except (SettingError, SendError) as error:
        raise CommandError(str(error)) from None
    yield f"written: {written} runs with {samples:,} samples; {len(runs) - written} were there already"


def _directory() -> Path:
    """Return the directory of the running daemon's history, else the default one."""
    from pathlib import Path

    from trackside_daemon.cli.sources.daemon_lookup import VARIABLE, find_local_daemon
    from trackside_daemon.cli.sources.errors import SourceError
    from trackside_daemon.history.directory import default_directory

    try:
        return Path(find_local_daemon().status["storage_path"])
    except (SourceError, KeyError):
        return Path(os.environ.get(VARIABLE) or default_directory(os.environ, os.getuid()))
