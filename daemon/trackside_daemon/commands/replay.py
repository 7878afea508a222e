"""The command replay: what the detectors find in what was pushed once."""

from __future__ import annotations

import json
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from trackside_daemon.commands.runs import StoragePath, Url, WrongError, find_history, print_lines, say, told
from trackside_daemon.commands.table import shown, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import BinaryIO

    from trackside_daemon.commands.source import Source
    from trackside_daemon.detectors.replaying import Change, Replay, Wanted

NAMED = 10
"""Lines that make no sense are named up to here, and counted from there on."""


class _Bad:
    """Names lines that make no sense, and counts them."""

    def __init__(self, file: str) -> None:
        self._file = file
        self.count = 0

    def __call__(self, number: int, why: str) -> None:
        self.count += 1
        if self.count <= NAMED:
            say(f"{self._file}: line {number}: {why}")

    def rest(self) -> None:
        """How many were not named."""
        if self.count > NAMED:
            say(f"{self._file}: {self.count - NAMED} more lines make no sense")


def replay(
    file: Annotated[
        str, typer.Argument(metavar="FILE|RUN", help="JSON lines, - for standard input; or a run.", show_default=False)
    ],
    *,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="ALERT", help="Only this alert; may be repeated.", show_default=False),
    ] = None,
    severity: Annotated[
        str, typer.Option(metavar="info|warning|critical", help="Only alerts that are as severe, or more.")
    ] = "info",
    summary: Annotated[bool, typer.Option("--summary", help="Print a table of counts instead.")] = False,
    storage_path: StoragePath = None,
    url: Url = "",
) -> None:
    """Run the detectors over a file or a run, and print a JSON line for each change of an alert.

    A line of the file is a push: {"step": 7, "time": 1700000000.5, "values": {"loss": 2.5}, "rank": 0, "phase": ""},
    of which only the values are needed. What trackside export --format jsonl writes is such a file.

    What is printed has the line as "index", from 0 on; of a run the number of the sample of its key. A run's
    step_duration_seconds are derived from the times of its steps.
    """
    with told():
        from trackside_daemon.detectors.replaying import Replay

        running = Replay(_wanted(only or [], severity))
        changes = _changes(file, storage_path, url, running)
        if summary:
            print_lines(_summary(changes))
        else:
            for change in changes:
                typer.echo(json.dumps(change.fields()))


class _Counted(NamedTuple):
    """The heading of a line of the summary."""

    alert: str
    severity: str
    key: str


def _wanted(only: list[str], severity: str) -> Wanted:
    from trackside_daemon.alarm import SEVERITIES
    from trackside_daemon.detectors.rank import ALERTS
    from trackside_daemon.detectors.replaying import Wanted

    for alert in only:
        if alert not in ALERTS:
            raise WrongError(f"--only {shown(alert)}: none is called so; there are {', '.join(sorted(ALERTS))}")
    if severity not in SEVERITIES:
        raise WrongError(f"--severity {shown(severity)}: an alert is {', '.join(SEVERITIES)}")
    return Wanted(frozenset(only), severity)


def _changes(name: str, directory: Path | None, url: str, running: Replay) -> Iterator[Change]:
    from trackside_daemon.commands import rows

    if name == "-" or _is_file(name):
        bad = _Bad("standard input" if name == "-" else name)
        with _opened(name) as stream:
            for row in rows.read(rows.lines(stream), rows.Rows(), bad):
                yield from running.take(row)
        bad.rest()
        return
    yield from _of_run(find_history(directory, url), name, running)


def _of_run(source: Source, name: str, running: Replay) -> Iterator[Change]:
    from trackside_daemon.commands import rows
    from trackside_daemon.detectors.durations import LOST
    from trackside_daemon.history.place import HistoryError
    from trackside_daemon.history.reader import UnknownRunError

    try:
        found = source.run(name)
    except (HistoryError, UnknownRunError) as error:
        raise WrongError(f"{name}: no such file, nor a run: {error}") from error
    if found.get("trimmed"):
        say("older samples of this run were trimmed, and the detectors see only what is left")
    durations, running.lost = rows.Durations(), LOST
    chunks = source.export(found["id"], "jsonl").chunks
    for row in rows.read(rows.split(chunks), rows.Rows(numbered=False), _Bad(f"run {name}")):
        if (derived := durations.take(row)) is not None:
            yield from running.take(derived)
        yield from running.take(row)


def _is_file(name: str) -> bool:
    """It is there, and may be a pipe."""
    try:
        path = Path(name)
        return path.exists() and not path.is_dir()
    except (OSError, ValueError):  # too long, or with a NUL
        return False


@contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    if name == "-":
        yield sys.stdin.buffer
        return
    try:
        with Path(name).open("rb") as stream:
            yield stream
    except BrokenPipeError:
        raise
    except OSError as error:
        raise WrongError(f"{name}: {(error.strerror or str(error)).lower()}") from error


def _summary(changes: Iterable[Change]) -> Iterator[str]:
    counts: dict[_Counted, Counter[str]] = {}
    ranks: dict[_Counted, set[int]] = {}
    for change in changes:
        line = _Counted(change.alert, change.severity, change.key)
        counts.setdefault(line, Counter())[change.state] += 1
        ranks.setdefault(line, set()).add(change.rank)
    header = [*("ALERT", "SEVERITY", "KEY", "RANKS"), *("FIRING", "REPEATED", "RESOLVED")]
    cells = [
        [*map(shown, line), str(len(ranks[line])), *(str(count[state]) for state in ("firing", "repeated", "resolved"))]
        for line, count in sorted(counts.items())
    ]
    return table(header, cells, right="<<<>>>>", flexible="  ~") if cells else iter(())
