"""The commands of the history: runs, show, export, pin, delete. They work with and without a daemon."""

from __future__ import annotations

import os
import re
import sys
import time
from codecs import getincrementaldecoder
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from trackside_daemon.cli.errors import CommandError, errors_reported, warn
from trackside_daemon.cli.options import (
    Form,
    Json,
    Query,
    Run,
    RunOrNewest,
    RunOrQuery,
    RunsOrQuery,
    StoragePath,
    Url,
    argument,
    flag,
    option,
)
from trackside_daemon.cli.output import FORMS, form_of, print_answer, print_json, print_lines
from trackside_daemon.documents.run import elapsed
from trackside_daemon.documents.text import table
from trackside_daemon.model.text import duration, number, read_moment, short_moment, shown, shown_lines
from trackside_daemon.questions import table as questions
from trackside_daemon.questions.artifacts import MOST_LINES
from trackside_daemon.questions.runs import MOST_METRICS, MOST_RUNS
from trackside_daemon.questions.series import Export

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from typing import BinaryIO

    from trackside_daemon.history.files.export import Format
    from trackside_daemon.questions.series import Exported


def save(export: Exported, form: str, output: Path | None) -> None:
    """Write an export, with a progress bar if standard error is a terminal and standard output is not.

    On a terminal, what could control it is escaped; everywhere else the export is exact.

    Args:
        export: What to write.
        form: Its format.
        output: A file; None for standard output.

    Raises:
        OSError: It cannot be written; an existing file is unchanged.
    """
    samples, chunks = export
    with _target(output) as file:
        on_terminal = file.isatty()
        decode = getincrementaldecoder("utf-8")("replace").decode
        shows = bool(samples) and sys.stderr.isatty() and not on_terminal
        bar: AbstractContextManager[Any] = nullcontext()
        if shows:
            bar = typer.progressbar(length=samples, label="samples", show_pos=True, file=sys.stderr)
        with bar as progress:
            for chunk in chunks:
                file.write(shown_lines(decode(chunk)).encode() if on_terminal else chunk)
                if progress is not None:
                    progress.update(min(_samples(chunk, form), (samples or 0) - progress.pos))
            if progress is not None:
                progress.update((samples or 0) - progress.pos)
        file.flush()


def _samples(chunk: bytes, form: str) -> int:
    """Return about how many samples a chunk has: exact counts are too slow for a progress bar."""
    if form == "json":
        return chunk.count(b"],")
    if form == "jsonl":
        return max(0, chunk.count(b":") - 6 * chunk.count(b"\n"))
    return max(0, chunk.count(b",") - 3 * chunk.count(b"\n") - len(re.findall(rb",(?=[,\n])", chunk)))


@contextmanager
def _target(output: Path | None) -> Iterator[BinaryIO]:
    """Yield the file to write to; a regular file appears when it is complete."""
    if output is None:
        yield sys.stdout.buffer
        return
    if output.exists() and not output.is_file():  # /dev/stderr, or a pipe
        with output.open("wb") as file:
            yield file
        return
    # In the same directory, because a file can be renamed only within its file system.
    unfinished = output.with_name(f"{output.name}.unfinished-{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            yield file
        unfinished.replace(output)
    except OSError as error:
        if error.filename == str(unfinished):
            error.filename = str(output)
        raise
    finally:
        unfinished.unlink(missing_ok=True)


EXPORTS = ("csv", "json", "jsonl")

STALE = "no daemon answers: the state of live runs and alerts is the last one stored"

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_RESULTS = 3  # most results of a run in a list

_ID = 8  # minimum number of letters of an id to show


@app.command(epilog="\b\nExample: trackside runs 'failed lr=3e-4 -tag:debug newer:7d'")
def runs(
    query: Annotated[
        list[str] | None,
        argument(
            "[QUERY]...",
            "Only runs that this selects; see docs/queries.md. Quote it, and write -- before a - that comes first.",
        ),
    ] = None,
    *,
    name: Annotated[str, option("TEXT", "Only runs with this in their name, or at the beginning of their id.")] = "",
    tag: Annotated[str, option("TAG", "Only runs with this tag.")] = "",
    state: Annotated[str, option("STATE", "Only runs in this state: running, finished, failed, …")] = "",
    since: Annotated[
        str, option("TIME", "Only runs that started since then: 7d, 12h, 2026-11-01, 2026-11-01T08:00.")
    ] = "",
    until: Annotated[str, option("TIME", "Only runs that started until then; a day includes its end.")] = "",
    limit: Annotated[int, option("N", "Maximum number of runs; 0 for 10000.", min=0, max=MOST_RUNS)] = 50,
    sort: Annotated[
        str, option("[-]KEY", "Order by a setting, a result, name, step, loss or started; - before it: falling.")
    ] = "",
    as_json: Json = False,
    storage_path: StoragePath = None,
    url: Url = "",
) -> None:
    """List the runs in the history, the newest first."""
    with errors_reported():
        from trackside_daemon.cli.sources.daemon_lookup import find_history
        from trackside_daemon.history.read.run_query import QueryError, ordered
        from trackside_daemon.model.families.training import STATES

        if state and state not in STATES:
            raise CommandError(f"--state {shown(state)}: a run is {', '.join(STATES)}")
        wanted = questions.Runs(
            name=name,
            tag=tag,
            state=state,
            since=_moment("--since", since),
            until=_moment("--until", until, end=True),
            limit=limit,
            query=" ".join(query or ()),
            config=bool(sort),
        )
        source = find_history(storage_path, url)
        found = source.ask(wanted)
        listed = found["runs"]
        if not source.live and any(run["ended"] is None for run in listed):
            warn(STALE)
        if sort:
            try:
                listed = ordered(None, listed, sort)
            except QueryError as error:
                raise CommandError(f"--sort {shown(sort)}: {error}") from None
            for run in listed:
                del run["config"]
        if as_json:
            print_json({"runs": listed})
        elif listed:
            print_lines(_list(listed, time.time()))
            if limit and len(listed) >= limit:  # a daemon adds live runs that are older
                warn(f"these are the newest {limit}; --limit, --since and --until show others")
        else:
            filtered = any((query, name, tag, state, since, until))
            warn(found.get("hint") or "no runs" + (" match" if filtered else " yet"))


@app.command(epilog="\b\nExample: trackside show gpt-small")
def show(
    run: RunOrNewest = "",
    *,
    rank: Annotated[int | None, option("N", "Rank whose metrics to show. [default: the lowest]", min=0)] = None,
    limit: Annotated[
        int, option("N", "Maximum number of metrics, over all ranks and attempts.", min=0, max=MOST_METRICS)
    ] = 2000,
    resources: Annotated[
        bool, flag("--resources", "Instead, show statistics of the run's GPUs, host and processes.")
    ] = False,
    console: Annotated[bool, flag("--console", "Instead, print the last 10000 lines that run --console kept.")] = False,
    form: Form = "text",
    as_json: Json = False,
    storage_path: StoragePath = None,
    url: Url = "",
) -> None:
    """Show a run: its state, metrics, configuration, command line, hardware, attempts, events and alerts.

    BEST is the minimum of a loss, an error, a perplexity or a time, and the maximum of an accuracy or a score, by the
    name of the key; a standard deviation has none. MEAN and STD omit NaN and infinities.
    """
    with errors_reported():
        from trackside_daemon.cli.sources.daemon_lookup import find_history
        from trackside_daemon.cli.sources.source import newest_unless
        from trackside_daemon.documents.diagnosis import used
        from trackside_daemon.documents.run import document

        form = form_of(form, as_json=as_json, most=("text", "json") if console else FORMS)
        source = find_history(storage_path, url)
        run = newest_unless(source, run)
        if console:
            _print_console(source.ask(questions.Console(id=run, lines=MOST_LINES)), run, as_json=form == "json")
            return
        if resources:
            diagnosis = source.ask(questions.Diagnosis(id=run))
            parts = {name: diagnosis[name] for name in ("run", "name", "resources", "suggestions")}
            print_answer(parts, form, lambda: used(diagnosis))
            return
        found = source.ask(questions.Run(id=run, limit=limit if rank is None else MOST_METRICS))
        if found["series"] > len(found["metrics"]):
            warn(f"{len(found['metrics'])} of {found['series']} metrics are shown; --limit N shows more")
        ranks = sorted({metric["rank"] for metric in found["metrics"]})
        if rank is not None and rank not in ranks:
            raise CommandError(
                f"--rank {rank}: the ranks of run {shown(found['name'])} are {', '.join(map(str, ranks)) or 'none'}"
            )
        found["alerts"] = source.ask(questions.Alerts(run=found["id"]))["alerts"]
        events = source.ask(questions.Events(run=found["id"]))["events"]
        print_answer({**found, "events": events}, form, lambda: document(found, events, rank, time.time()))


def _print_console(found: Mapping[str, Any], run: str, *, as_json: bool) -> None:
    """Print lines of a command's output; what could control the terminal is escaped."""
    if as_json:
        print_json({name: found[name] for name in ("lines", "total", "more")})
        return
    if not found["total"]:
        raise CommandError(f"run {shown(run)} has no output: start its command with trackside run --console")
    if found["more"]:
        warn(
            f"these are the last {len(found['lines'])} of {found['total']} lines; the page of the run shows the others"
        )
    print_lines(shown(line.expandtabs()) for _, line in found["lines"])


@app.command(epilog="\b\nExample: trackside export gpt-small --format csv --output gpt-small.csv")
def export(
    run: RunOrQuery = "",
    *,
    query: Query = "",
    form: Annotated[str, option("|".join(EXPORTS), "Format of the output.", "--format")] = "csv",
    output: Annotated[
        Path | None,
        option(
            "FILE",
            "Write to this file; with --query, a file for each run into this directory. [default: standard output]",
        ),
    ] = None,
    resources: Annotated[
        bool, flag("--resources", "Also the GPU, host and process series of the time of the run.")
    ] = False,
    long: Annotated[bool, flag("--long", "CSV with a line for each value: time, metric, labels, value.")] = False,
    storage_path: StoragePath = None,
    url: Url = "",
) -> None:
    """Export a run with every sample.

    csv is a table of samples; json and jsonl have everything else about the run, too. trackside import reads all
    three, but no CSV with --long.
    """
    with errors_reported():
        from trackside_daemon.cli.sources.daemon_lookup import find_history
        from trackside_daemon.cli.sources.source import selected
        from trackside_daemon.history.files.jsonl import folder

        if form not in EXPORTS:
            raise CommandError(f"--format: {form!r} is not one of {', '.join(EXPORTS)}")
        if long and form != "csv":
            raise CommandError(f"--long is a CSV, and --format={form} is not; leave one of them out")
        source = find_history(storage_path, url)
        directory = output if query else None
        if query and directory is None:
            raise CommandError("--query: name the directory for the files with --output")
        for text in selected(source, [run] if run else None, query):
            found = source.ask(questions.Run(id=text, limit=0))
            if found.get("trimmed"):
                warn(f"older samples of run {shown(found['name'])} were trimmed; only the remaining ones are exported")
            wanted = Export(id=found["id"], format="long" if long else cast("Format", form), resources=resources)
            if directory is not None:
                directory.mkdir(parents=True, exist_ok=True)
                output = directory / f"{folder(found['id'])}.{form}"
            save(source.export(wanted), form, output)


@app.command(epilog="\b\nExample: trackside pin gpt-small")
def pin(
    run: Run,
    *,
    off: Annotated[bool, flag("--off", "Unpin the run.")] = False,
    storage_path: StoragePath = None,
    url: Url = "",
) -> None:
    """Pin a run, so that retention never deletes it or its samples."""
    with errors_reported():
        from trackside_daemon.cli.sources.daemon_lookup import find_history

        source = find_history(storage_path, url)
        found = source.ask(questions.Run(id=run, limit=0))
        source.pin(found["id"], pinned=not off)
        typer.echo(f"{'unpinned' if off else 'pinned'}: {_named(found)}")


@app.command(epilog="\b\nExample: trackside delete --query 'failed older:30d -pinned'")
def delete(
    run: RunsOrQuery = None,
    *,
    query: Query = "",
    yes: Annotated[bool, flag("--yes", "Do not ask for confirmation.", "-y")] = False,
    storage_path: StoragePath = None,
    url: Url = "",
) -> None:
    """Delete runs from the history permanently.

    `trackside runs 'QUERY'` lists what --query would delete. A query that selects none is no error.
    """
    with errors_reported():
        from trackside_daemon.cli.sources.daemon_lookup import find_directory, find_history
        from trackside_daemon.cli.sources.source import NotFoundError, selected
        from trackside_daemon.history.directory import delete_copy

        source = find_history(storage_path, url)
        try:
            named = selected(source, run, query)
        except NotFoundError as error:
            warn(f"nothing to delete: {error}")
            return
        found = {
            described["id"]: described for described in (source.ask(questions.Run(id=text, limit=0)) for text in named)
        }
        if not yes:
            for described in found.values():
                typer.echo(f"{_named(described)}, {shown(described['state'])}", err=True)
            what = "this run" if len(found) == 1 else f"these {len(found)} runs"
            typer.echo(f"delete {what}? [y/N]: ", err=True, nl=False)
            answer = sys.stdin.readline()
            if not answer.endswith("\n"):
                typer.echo(err=True)
            sure = answer.strip().lower() in {"y", "yes"}
            if not sure:
                raise CommandError("nothing was deleted; --yes deletes without confirmation")
        with source.changes():
            for uid, described in found.items():
                source.delete(uid)
                typer.echo(f"deleted: {_named(described)}")
        if not url:  # a daemon of another user deletes only its own copy
            list(delete_copy(find_directory(storage_path)))


def _list(found: Sequence[Mapping[str, Any]], now: float) -> Iterator[str]:
    short = shortened([run["id"] for run in found])
    tagged = any(run["tags"] for run in found)
    several_users = len({run["user"] for run in found}) > 1
    stated = any(run.get("summary") for run in found)
    rows = []
    for run, id_ in zip(found, short, strict=True):
        row = [
            shown(id_),
            shown(run["name"]) + (" *" if run["pinned"] else ""),
            shown(run["state"]),
            short_moment(run["started"], now),
            duration(elapsed(run, now)),
            number(run["step"]),
            number(run["loss"]),
        ]
        row += [shown(run["user"])] if several_users else []
        row += [_results(run.get("summary", {}))] if stated else []
        rows.append([*row, shown(",".join(run["tags"]))] if tagged else row)
    header = ["ID", "NAME", "STATE", "STARTED", "TOOK", "STEP", "LOSS"]
    header += [name for name, wanted in (("USER", several_users), ("RESULTS", stated), ("TAGS", tagged)) if wanted]
    yield from table(header, rows, right="<<<<>>>", flexible=" ~     ~~~")
    if any(run["pinned"] for run in found):
        yield "* pinned"


def _results(summary: Mapping[str, Any]) -> str:
    from trackside_daemon.model.configuration import result

    texts = [f"{shown(key)}={result(value)}" for key, value in summary.items()]
    return " ".join(texts[:_RESULTS]) + (" …" if len(texts) > _RESULTS else "")


def shortened(ids: Sequence[str]) -> list[str]:
    """Return the ids, shortened as far as they stay distinct."""
    longest = max(map(len, ids), default=0)
    length = next((length for length in range(_ID, longest) if len({id_[:length] for id_ in ids}) == len(ids)), longest)
    return [id_[:length] for id_ in ids]


def _named(run: Mapping[str, Any]) -> str:
    return shown(run["name"] if run["name"] == run["id"] else f"{run['name']} ({run['id']})")


def _moment(option: str, text: str, *, end: bool = False) -> float | None:
    try:
        return read_moment(text, end=end) if text else None
    except ValueError as error:
        raise CommandError(f"{option}: {error}") from None
