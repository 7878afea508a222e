"""The command fleet: questions over the archived runs of all machines."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from trackside_daemon.cli.errors import CommandError, errors_reported, warn
from trackside_daemon.cli.options import Json, StoragePath, argument, option
from trackside_daemon.cli.output import print_json, print_lines
from trackside_daemon.documents.text import table
from trackside_daemon.model.text import shown

KEPT_SECONDS = 30 * 86400.0  # for which what questions about a history wrote is kept after the last one


def fleet(
    question: Annotated[str, argument("QUESTION", "A prepared question; by default they are listed.")] = "",
    *,
    source: Annotated[
        str,
        option(
            "TARGET",
            "Directory or address with the archived runs. [default: bridges.parquet.url, else this machine's runs]",
            "--from",
        ),
    ] = "",
    sql: Annotated[
        str, option("QUERY", "A query over the tables runs, samples, alerts, and parts (a run's row of each machine).")
    ] = "",
    as_json: Json = False,
    storage_path: StoragePath = None,
) -> None:
    """Ask over all archived runs: which lost most GPU hours, to which causes, on which hosts.

    A number in a question can be another one. It needs trackside[fleet].
    """
    with errors_reported():
        from trackside_daemon.bridges.parquet.fleet import QUESTIONS, ask, prepared
        from trackside_daemon.bridges.parquet.store import FileStore
        from trackside_daemon.http_client.errors import SendError, SettingError

        if not question and not sql:
            print_lines(QUESTIONS)
            return
        if question and sql:
            raise CommandError("a question and --sql: give one of them")
        try:
            query = sql or prepared(question)
            with _archived(source, storage_path) as target:
                found = ask(FileStore(target), query)
        except (SettingError, SendError, LookupError, ModuleNotFoundError) as error:
            raise CommandError(str(error.args[0])) from None
        except ValueError as error:
            raise CommandError(f"the query: {error}") from None
        for line in found.left_out:
            warn(f"left out: {line}")
        if as_json:
            print_json([dict(zip(found.columns, map(_plain, row), strict=True)) for row in found.rows])
        else:
            print_lines(table(found.columns, [tuple(map(_cell, row)) for row in found.rows]))


@contextmanager
def _archived(source: str, storage_path: Path | None) -> Iterator[str]:
    """Yield where the archived runs are; without an archive, those of this machine, as its history has them now."""
    from trackside_daemon.cli.commands.archive import write
    from trackside_daemon.cli.sources.daemon_lookup import find_directory
    from trackside_daemon.config.loading import load
    from trackside_daemon.history.frames.optional_library import library
    from trackside_daemon.service.config import Config

    if target := source or load(Config).bridges.parquet.url:
        yield target
        return
    library("duckdb", "fleet")  # before all runs are written in vain
    warn("these are the ended runs of this machine; --from and bridges.parquet.url name an archive")
    history = find_directory(storage_path)
    with _place(history) as place:
        with suppress(typer.Exit):  # it has named what is not written
            for _ in write(str(place), history, exact=True):
                pass
        if not any(place.glob("runs/*/*/*")):
            raise CommandError("no run of this machine has ended; --from and bridges.parquet.url name an archive")
        yield str(place)


@contextmanager
def _place(history: Path) -> Iterator[Path]:
    """Yield the directory with what earlier questions about a history wrote, for this user alone, and no other question at once.

    An empty one that is deleted afterwards, if there cannot be one, or another question has it.
    """
    from trackside_daemon.history.directory import copy_directory, make_private
    from trackside_daemon.linux.file_lock import FileLock, HeldError

    with ExitStack() as stack:
        try:
            place = copy_directory(history)
            make_private(place)
            owners = {one.lstat().st_uid for one in (place, *place.parents)}
            if place.stat().st_mode & 0o077 or not owners <= {0, os.getuid()}:  # another user could put something there
                raise PermissionError(place)
            stack.callback(FileLock(place / "lock").close)
            os.utime(place)
            for other in place.parent.iterdir():
                if time.time() - other.stat().st_mtime > KEPT_SECONDS:
                    shutil.rmtree(other, ignore_errors=True)
        except (LookupError, OSError, HeldError):
            place = Path(stack.enter_context(TemporaryDirectory(prefix="trackside-")))
        yield place


def _plain(value: Any) -> Any:
    """Return a value that JSON can hold."""
    return value if value is None or isinstance(value, bool | int | float | str | list | dict) else str(value)


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else shown(value)
