"""The commands about the history: runs, show, compare, export, import, pin, delete. The daemon may be up or not."""

from __future__ import annotations

import json
import re
import sqlite3
import sys
import time
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, cast

import typer

from trackside_daemon.cli.commands.table import short_moment, table, took
from trackside_daemon.model.setting_types import seconds
from trackside_daemon.model.text import duration, number, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trackside_daemon.cli.sources.source import Source
    from trackside_daemon.history.files.export import Format

FORMS = ("csv", "json", "jsonl")

app = typer.Typer(rich_markup_mode=None)


class WrongError(Exception):
    """The command cannot do what it was told; the message says why in one line."""


_ID = 8
"""Letters of an id that are shown at least."""

_DATE = re.compile(r"\d{4}-\d\d-\d\d(?P<time>T\d\d:\d\d(:\d\d)?(Z|[+-]\d\d:\d\d)?)?", re.ASCII)
"""What `datetime.fromisoformat` reads of dates in all versions of Python; later ones read more."""

StoragePath = Annotated[
    Path | None,
    typer.Option(
        "--storage.path",
        help="The history's directory. [default: the one of the daemon that is up, else the user's own]",
        metavar="DIR",
        show_default=False,
    ),
]
Url = Annotated[
    str,
    typer.Option(
        "--url",
        help="A daemon elsewhere: its address, with #token=… if it wants one.",
        metavar="URL",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="An id, the beginning of one, or a name: the newest run of it.", show_default=False
    ),
]
Runs = Annotated[
    list[str],
    typer.Argument(metavar="RUN", help="Ids, beginnings of ids, or names: the newest run of each.", show_default=False),
]


@app.command(epilog="\b\nExample: trackside runs --state failed --since 7d")
def runs(
    *,
    name: Annotated[
        str, typer.Option(help="Only those with this in their name, or at the beginning of their id.", metavar="TEXT")
    ] = "",
    tag: Annotated[str, typer.Option(help="Only those with this tag.", metavar="TAG")] = "",
    state: Annotated[str, typer.Option(help="Only those that are: running, finished, failed, …", metavar="STATE")] = "",
    since: Annotated[
        str, typer.Option(help="Begun then or later: 7d, 12h, 2026-11-01, 2026-11-01T08:00.", metavar="TIME")
    ] = "",
    until: Annotated[str, typer.Option(help="Begun then or before, likewise; a day to its end.", metavar="TIME")] = "",
    limit: Annotated[int, typer.Option(min=0, help="So many of the newest; 0 for all.", metavar="N")] = 50,
    as_json: Json = False,
    storage_path: StoragePath = None,
    url: Url = "",
) -> None:
    """List the runs in the history, the newest first."""
    with told():
        from trackside_daemon.history.read.reader import RunFilter
        from trackside_daemon.training.families import STATES

        if state and state not in STATES:
            raise WrongError(f"--state {shown(state)}: a run is {', '.join(STATES)}")
        wanted = RunFilter(name, tag, state, _moment("--since", since), _moment("--until", until, end=True), limit)
        source = find_history(storage_path, url)
        found = source.runs(wanted)
        if not source.live and any(run["ended"] is None for run in found):
            say("no daemon answers here: what has not ended is told as it was last written")
        if as_json:
            _print_json({"runs": found})
        elif found:
            print_lines(_list(found, time.time()))
            if limit and len(found) == limit:
                typer.echo(f"trackside: the newest {limit}; --limit 0 for all", err=True)
        else:
            typer.echo("trackside: no runs" + (" of that kind" if any(wanted[:5]) else " yet"), err=True)


@app.command(epilog="\b\nExample: trackside show gpt-small")
def show(
    run: Run,
    *,
    rank: Annotated[
        int | None, typer.Option(min=0, help="Whose metrics. [default: the lowest]", metavar="N", show_default=False)
    ] = None,
    as_json: Json = False,
    storage_path: StoragePath = None,
    url: Url = "",
) -> None:
    """Tell all of a run: its end, metrics, configuration, alerts.

    Also its command, commit, hardware, attempts and newest events.

    BEST is the minimum of what is called a loss, an error, a perplexity or a time, and the maximum of an accuracy or
    a score. MEAN leaves out NaN and infinities.
    """
    with told():
        from trackside_daemon.cli.commands import show

        source = find_history(storage_path, url)
        found = source.run(run)
        ranks = sorted({one["rank"] for one in found["metrics"]})
        if rank is not None and rank not in ranks:
            raise WrongError(f"--rank {rank}: run {shown(found['name'])} has {', '.join(map(str, ranks)) or 'none'}")
        found["alerts"], events = source.alerts(found["id"]), source.events(found["id"])
        if as_json:
            _print_json({**found, "events": events})
        else:
            print_lines(show.describe(found, events, rank, time.time()))


@app.command(epilog="\b\nExample: trackside compare baseline wider deeper")
def compare(run: Runs, *, as_json: Json = False, storage_path: StoragePath = None, url: Url = "") -> None:
    """Put runs side by side: what differs, and their metrics.

    Of the configurations the entries that differ; of the metrics those of the lowest rank.
    """
    with told():
        from trackside_daemon.cli.commands import show

        source = find_history(storage_path, url)
        found = [source.run(one) for one in run]
        if as_json:
            _print_json(show.compared(found))
        else:
            print_lines(show.compare(found))


@app.command(epilog="\b\nExample: trackside export gpt-small --format csv --output gpt-small.csv")
def export(
    run: Run,
    *,
    form: Annotated[str, typer.Option("--format", metavar="|".join(FORMS), help="What to write.")] = "csv",
    output: Annotated[
        Path | None,
        typer.Option(help="Write to this file. [default: standard output]", metavar="FILE", show_default=False),
    ] = None,
    storage_path: StoragePath = None,
    url: Url = "",
) -> None:
    """Write a run with every sample it has.

    As csv for a table; as json or jsonl with all that is known of the run.

    trackside import reads all three again.
    """
    with told():
        from trackside_daemon.cli.commands.export_output import save

        if form not in FORMS:
            raise WrongError(f"--format: {form!r} is none of {', '.join(FORMS)}")
        source = find_history(storage_path, url)
        found = source.run(run)
        if found.get("trimmed"):
            typer.echo("trackside: older samples of this run were trimmed, and only what is left is written", err=True)
        save(source.export(found["id"], cast("Format", form)), form, output)


@app.command("import", epilog="\b\nExample: trackside import old/loss.csv --name baseline")
def import_(
    file: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="Of trackside export, or of other tools.", show_default=False)
    ],
    *,
    name: Annotated[
        str,
        typer.Option(
            help="The run's name. [default: as the file says or is called]", metavar="NAME", show_default=False
        ),
    ] = "",
    id: Annotated[str, typer.Option(help="The run's id, likewise.", metavar="ID", show_default=False)] = "",  # noqa: A002  the option's name
    storage_path: StoragePath = None,
    url: Url = "",
) -> None:
    """Take runs from files into the history.

    What trackside export writes, and CSV and JSON lines of other tools.

    CSV has a column for the step, one for the time perhaps, and one a key, as pandas, W&B and TensorBoard write it.
    """
    with told():
        if id and len(file) > 1:
            raise WrongError("--id is for one file: each run needs its own")
        source = find_history(storage_path, url)
        status = 0
        for one in file:
            status = max(status, _import(source, one, name, id))
    raise typer.Exit(status)


@app.command(epilog="\b\nExample: trackside pin gpt-small")
def pin(
    run: Run,
    *,
    off: Annotated[bool, typer.Option("--off", help="Let it go again.")] = False,
    storage_path: StoragePath = None,
    url: Url = "",
) -> None:
    """Keep every sample of a run, whatever the bounds are."""
    with told():
        source = find_history(storage_path, url)
        found = source.run(run)
        source.pin(found["id"], pinned=not off)
        typer.echo(f"{'no longer pinned' if off else 'pinned'}: {_named(found)}")


@app.command(epilog="\b\nExample: trackside delete 3f9a1c --yes")
def delete(
    run: Runs,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    storage_path: StoragePath = None,
    url: Url = "",
) -> None:
    """Delete runs from the history, for good."""
    with told():
        source = find_history(storage_path, url)
        found = {one["id"]: one for one in map(source.run, run)}
        if not yes:
            for one in found.values():
                typer.echo(f"{_named(one)}, {shown(one['state'])}", err=True)
            what = "this run" if len(found) == 1 else f"these {len(found)} runs"
            typer.echo(f"delete {what}? [y/N]: ", err=True, nl=False)
            answer = sys.stdin.readline()
            if not answer.endswith("\n"):
                typer.echo(err=True)
            sure = answer.strip().lower() in {"y", "yes"}
            if not sure:
                raise WrongError("nothing was deleted; --yes deletes without asking")
        for one in found.values():
            source.delete(one["id"])
            typer.echo(f"deleted: {_named(one)}")


def _list(found: Sequence[Mapping[str, Any]], now: float) -> Iterator[str]:
    short = _short([run["id"] for run in found])
    tagged = any(run["tags"] for run in found)
    rows = []
    for run, id_ in zip(found, short, strict=True):
        row = [
            shown(id_),
            shown(run["name"]) + (" *" if run["pinned"] else ""),
            shown(run["state"]),
            short_moment(run["started"], now),
            duration(took(run, now)),
            number(run["step"]),
            number(run["loss"]),
        ]
        rows.append([*row, shown(",".join(run["tags"]))] if tagged else row)
    header = ["ID", "NAME", "STATE", "STARTED", "TOOK", "STEP", "LOSS", *(["TAGS"] if tagged else [])]
    yield from table(header, rows, right="<<<<>>><", flexible=" ~     ~")
    if any(run["pinned"] for run in found):
        yield "* pinned"


def _short(ids: Sequence[str]) -> list[str]:
    """As much of the ids as tells these apart."""
    longest = max(map(len, ids))
    length = next((length for length in range(_ID, longest) if len({id_[:length] for id_ in ids}) == len(ids)), longest)
    return [id_[:length] for id_ in ids]


def _named(run: Mapping[str, Any]) -> str:
    return shown(run["name"] if run["name"] == run["id"] else f"{run['name']} ({run['id']})")


def _import(source: Source, file: Path, name: str, id_: str) -> int:
    """One file; its exit status."""
    from trackside_daemon.cli.sources.errors import SourceError
    from trackside_daemon.history.files.importing import ImportingError
    from trackside_daemon.history.files.items import FormatError

    try:
        taken = source.take(file, name, id_)
    except (FormatError, ImportingError) as error:
        say(str(error))
        return 2
    except (ArithmeticError, RecursionError, ValueError) as error:
        say(f"{file}: it holds what no history can: {error}")
        return 2
    except SourceError as error:
        say(str(error))
        return error.status
    except FileNotFoundError:
        say(f"{file}: no such file")
        return 2
    for note in taken.notes:
        say(f"{file}: {note}")
    typer.echo(f"imported: {file} as run {shown(taken.run)}, {taken.samples} samples")
    return 0


def _moment(option: str, text: str, *, end: bool = False) -> float | None:
    """Unix seconds of a duration back from now, or of a date; of a day without a time its beginning or *end*."""
    if not text:
        return None
    try:
        return time.time() - float(str(seconds(text)))
    except ValueError:
        pass
    try:
        date = _DATE.fullmatch(text)
        found = datetime.fromisoformat(re.sub("Z$", "+00:00", text) if date else "")
        return (found + timedelta(days=1 if end and date and not date["time"] else 0)).timestamp()
    except (ValueError, OverflowError):
        raise WrongError(
            f"{option}: {text!r} is neither a duration such as 7d or 12h, nor a date such as 2026-11-01 or "
            "2026-11-01T08:00"
        ) from None


def find_history(directory: Path | None, url: str) -> Source:
    """The history that a command is about."""
    from trackside_daemon.cli.sources.daemon_lookup import find

    return find(directory, url)


@contextmanager
def told() -> Iterator[None]:
    """Failures are a line each, and an exit status: 2 for what cannot be, 1 for what went wrong."""
    from trackside_daemon.cli.sources.errors import SourceError
    from trackside_daemon.history.directory import HistoryError
    from trackside_daemon.history.read.reader import UnknownRunError

    try:
        yield
    except SourceError as error:
        _fail(str(error), error.status)
    except (WrongError, HistoryError, UnknownRunError) as error:
        _fail(str(error), 2)
    except BrokenPipeError:
        raise
    except (OSError, sqlite3.Error, ValueError, FutureTimeoutError) as error:
        _fail(_reason(error), 1)


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror.lower()}" if error.filename else error.strerror.lower()
    return f"the history: {error}"


def _fail(message: str, status: int) -> NoReturn:
    say(message)
    raise typer.Exit(status)


def say(message: str) -> None:
    """Tell the user, beside what is printed."""
    typer.echo(f"trackside: {shown(message)}", err=True)


def print_lines(lines: Iterator[str]) -> None:
    """Print what may have letters that the terminal has not."""
    encoding = sys.stdout.encoding or "utf-8"
    for line in lines:
        typer.echo(line.encode(encoding, "backslashreplace").decode(encoding))


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2))
