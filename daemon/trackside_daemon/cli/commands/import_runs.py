"""The command import: runs of other tools, and files of trackside export."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trackside.os_errors import os_error_text
from trackside_daemon.cli.errors import CommandError, errors_reported, warn
from trackside_daemon.cli.options import StoragePath, Url, argument, flag, option
from trackside_daemon.model.text import shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside_daemon.bridges.foreign_run import ForeignRun
    from trackside_daemon.cli.sources.source import Source
    from trackside_daemon.history.files.importing import ImportResult


def import_(
    path: Annotated[list[str], argument("PATH", "Files, directories, or the address of an MLflow server.")],
    *,
    name: Annotated[str, option("NAME", "Name of the run. [default: the one in the file, else the file's name]")] = "",
    id_: Annotated[
        str, option("ID", "Id of the run. [default: the one in the file, else one derived from the file]", "--id")
    ] = "",
    follow: Annotated[
        bool, flag("--follow", "Push what is there and what is written to the daemon, until Ctrl-C.")
    ] = False,
    storage_path: StoragePath = None,
    url: Url = "",
) -> None:
    """Import runs of other tools, or files of trackside export, into the history.

    These are event files of TensorBoard, .wandb files of W&B, file stores, SQLite files and servers of MLflow,
    databases of trackio, metrics.csv of Lightning, trainer_state.json of Transformers, CSV, JSON and JSON lines; of a
    directory all that the history does not have. A damaged record costs itself.
    """
    with errors_reported():
        from trackside_daemon.cli.sources.daemon_lookup import find_history

        if id_ and len(path) > 1:
            raise CommandError("--id is valid for one file only, because each run needs a distinct id")
        if follow:
            if id_ or storage_path or url:
                raise CommandError(
                    "--follow pushes to the daemon of this machine; give it without --id, --url and --storage.path"
                )
            _follow(path, name)
            return
        source = find_history(storage_path, url)
        status = 0
        for place in path:
            status = max(status, _import_place(source, place, name, id_))
    raise typer.Exit(status)


def _import_place(source: Source, place: str, name: str, id_: str) -> int:
    """Import the runs at a place, and return the exit status."""
    from trackside_daemon.bridges.finding import find_runs
    from trackside_daemon.bridges.foreign_run import ForeignRunError
    from trackside_daemon.history.directory import HistoryError
    from trackside_daemon.questions.runs import Runs

    broken: list[str] = []
    try:
        found = find_runs(place, os.environ, broken.append, exports=True)
    except (ForeignRunError, OSError) as error:
        for line in broken or [f"{place}: {os_error_text(error)}" if isinstance(error, OSError) else str(error)]:
            warn(line)
        return 2
    for line in broken:
        warn(line)
    if not found:
        return _import(place, lambda: source.import_file(Path(place), name, id_))
    if len(found) == 1 and (name or id_):
        return _import_run(source, found[0], name, id_)
    if id_:
        raise CommandError(f"--id: there are {len(found)} runs in {place}, and each needs a distinct id")
    known: set[str] = set()
    with suppress(HistoryError):  # there is none yet; the import makes it
        known = {run["id"] for run in source.ask(Runs())["runs"]}
    distinct: dict[str, ForeignRun] = {}
    twice = [run for run in found if distinct.setdefault(run.id, run) is not run]
    if twice:
        which = f"{twice[0].place} has that of {distinct[twice[0].id].place}"
        warn(f"{place}: {len(twice)} of {len(found)} runs are left out, with the id of another one there: {which}")
    new = [run for run in distinct.values() if run.id not in known]
    if len(new) < len(distinct):
        warn(f"{place}: {len(distinct) - len(new)} of {len(found)} runs are in the history already")
    with source.changes():
        statuses = [_import_run(source, run, f"{name}/{run.name}" if name else "", "") for run in new]
    return max([*statuses, 2 if broken else 0])


def _import_run(source: Source, run: ForeignRun, name: str, id_: str) -> int:
    def work() -> ImportResult:
        try:
            items = run.items()
            first = next(items)  # before the name, which a log has at its beginning
            result = source.import_run(chain([first], items), run.place, name or run.name, id_ or run.id)
            return result._replace(notes=[*result.notes, *run.notes()])
        finally:
            run.close()

    return _import(run.place, work)


def _import(place: str, work: Callable[[], ImportResult]) -> int:
    """Import a run, and return the exit status."""
    from trackside_daemon.bridges.foreign_run import ForeignRunError
    from trackside_daemon.cli.sources.source import SourceError
    from trackside_daemon.history.files.importing import ImportingError
    from trackside_daemon.history.files.items import FormatError

    try:
        imported = work()
    except (FormatError, ForeignRunError, ImportingError) as error:
        warn(str(error))
        return 2
    except (ArithmeticError, RecursionError, ValueError) as error:
        warn(f"{place}: the history cannot store its content: {error}")
        return 2
    except SourceError as error:
        warn(str(error))
        return error.status
    except FileNotFoundError:
        warn(f"{place}: no such file")
        return 2
    for note in imported.notes:
        warn(f"{place}: {note}")
    typer.echo(f"imported: {shown(place)} as run {shown(imported.run)}, {imported.samples} samples")
    return 0


def _follow(places: list[str], name: str) -> None:
    """Follow some places until Ctrl-C."""
    from trackside_daemon.bridges.following import POLL_SECONDS, Follower
    from trackside_daemon.cli.run.follower import stored_in_daemon
    from trackside_daemon.cli.sources.daemon_lookup import find_local_daemon

    daemon = find_local_daemon().source
    for place in places:
        if "://" not in place and not Path(place).exists():
            warn(f"{place}: nothing is there yet")
    follower = Follower(places, os.environ, stored_in_daemon(daemon), warn, name=name)
    try:
        while True:
            if pushed := follower.poll():
                typer.echo(f"pushed {pushed:,} samples")
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        for run in follower.close("stopped"):
            typer.echo(f"stopped following run {shown(run)}")
