"""The command archive: write ended runs as Parquet files."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trackside_daemon.cli.errors import CommandError, errors_reported, fail, warn
from trackside_daemon.cli.options import StoragePath, argument, flag
from trackside_daemon.cli.output import print_lines
from trackside_daemon.model.text import shown

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

    from trackside_daemon.bridges.mirrors.target import MirroredRun


def archive(
    target: Annotated[str, argument("TARGET", "A directory, or an address such as s3://BUCKET/PREFIX.")],
    *,
    verify: Annotated[bool, flag("--verify", "Write nothing: name the files of the target that are wrong.")] = False,
    storage_path: StoragePath = None,
) -> None:
    """Write the runs that have ended as Parquet files, for `trackside fleet` and everything else that reads Parquet.

    What the target has stays. A file is complete or not there, and several may write to one target. The daemon does
    the same with bridges.parquet.url; needs trackside[arrow].
    """
    with errors_reported():
        from trackside_daemon.cli.sources.daemon_lookup import find_directory

        print_lines(_verified(target) if verify else write(target, find_directory(storage_path)))


def write(target: str, history_path: Path, *, exact: bool = False) -> Iterator[str]:
    """Write the ended runs of a history to a target, and yield a line for each and for all.

    With *exact*, also runs whose names, tags, causes, summaries or alerts have changed are written again, and those that were
    deleted are deleted. Samples stay that retention has deleted since: it deletes the copy that questions keep.
    """
    from trackside_daemon.bridges.mirrors.unsent import mirrored_runs
    from trackside_daemon.bridges.parquet.mirror import make_target
    from trackside_daemon.history.read.offline import Offline
    from trackside_daemon.http_client.errors import SendError, SettingError

    try:
        files = make_target({"url": target})
        history = Offline(history_path, lambda line: typer.echo(line, err=True))
        written = samples = there = failures = 0
        with history.reading() as connection:
            runs = [run for run in mirrored_runs(connection, None) if run.ended is not None]
        for run in runs:
            name = f"{shown(run.name)} ({shown(run.id)})"
            with history.reading() as connection:  # one transaction for each run, so that the WAL can shrink
                if (now := _ended(connection, run.id, exact=exact)) is None:
                    continue
                try:
                    count = files.write(connection, now)
                except SendError as error:
                    if error.retry == "soon":  # the target does not answer: it would not for the others
                        raise
                    failures += 1
                    warn(f"{name} is not written: {error}")
                    continue
            if count is None:
                there += 1
                continue
            yield f"{name}: {count:,} samples"
            written += 1
            samples += count
        if exact:
            files.delete_others()
    except (SettingError, SendError) as error:
        raise CommandError(str(error)) from None
    yield f"written: {written} runs with {samples:,} samples; {there} were there already"
    if files.lost:
        warn(f"{files.lost:,} samples had been deleted from the history before: storage.retention.size")
    if failures:
        fail(f"{failures} runs are not written; the next trackside archive tries again", 1)


def _ended(connection: sqlite3.Connection, run: str, *, exact: bool) -> MirroredRun | None:
    """Return a run as it is now; None if it was deleted or goes on. If *exact*, its end changes with what may change after it."""
    from trackside_daemon import __version__
    from trackside_daemon.bridges.mirrors.unsent import mirrored_runs

    now = next(mirrored_runs(connection, None, run), None)
    if now is None or now.ended is None:
        return None
    if not exact:
        return now
    later = connection.execute(
        "SELECT run.cause, run.summary, alert, severity, labels, alert.started, alert.ended, alert.summary, description "
        "FROM run LEFT JOIN alert ON alert.run = run.id WHERE uid = ? ORDER BY alert.started, alert, labels",
        (run,),
    ).fetchall()
    about = zlib.crc32(repr((__version__, now.name, now.tags, later)).encode("utf-8", "replace"))
    return now._replace(end=f"{now.end} {about:x}")


def _verified(target: str) -> Iterator[str]:
    from trackside_daemon.bridges.parquet.store import FileStore
    from trackside_daemon.bridges.parquet.verification import Verification
    from trackside_daemon.http_client.errors import SendError, SettingError

    try:
        found = Verification(FileStore(target))
        for fault in found.faults():
            yield shown(fault)
    except (SettingError, SendError, LookupError) as error:
        raise CommandError(str(error.args[0])) from None
    yield f"verified: {found.runs} runs with {found.samples:,} samples in {found.files} files; {found.wrong} are wrong"
    if found.wrong:
        raise typer.Exit(1)
