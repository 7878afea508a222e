"""The command replay: what the detectors find in what was pushed once."""

from __future__ import annotations

import json
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from trackside_daemon.cli.commands.runs import StoragePath, Url, WrongError, find_history, print_lines, say, told
from trackside_daemon.cli.commands.table import moment, table
from trackside_daemon.model.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any, BinaryIO

    from trackside_daemon.alerts.settings import AlertsSection
    from trackside_daemon.cli.sources.source import Source
    from trackside_daemon.detectors.replay import Change, Row, Wanted

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
    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config.file",
            help="A daemon's YAML file: its alerts.thresholds and alerts.off count.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    storage_path: StoragePath = None,
    url: Url = "",
) -> None:
    """Run the detectors over a file or a run, and print a JSON line for each change of an alert.

    A line of the file is a push: {"step": 7, "time": 1700000000.5, "values": {"loss": 2.5}, "rank": 0, "phase": ""},
    of which only the values are needed. What trackside export --format jsonl writes is such a file.

    What is printed has the line as "index", from 0 on; of a run the number of the sample of its key. A run's
    step_duration_seconds are derived from the times of its steps. The environment counts as it does for the daemon. Rules
    of alerts.rules, and what is seen of whole runs and beside other ranks (TrainingStalled, StragglerRank, …), are not
    replayed.
    """
    with told():
        from trackside_daemon.detectors.replay import Replay

        section = _section(config_file)
        pushed = _pushed(file, storage_path, url)
        wanted = _wanted(only or [], severity, section, pushed.run)
        running = Replay(wanted, section.thresholds, lost=pushed.lost)
        changes = _Counted(change for row in pushed.rows for change in running.evaluate(row))
        if summary:
            print_lines(_summary(changes))
        else:
            for change in changes:
                typer.echo(json.dumps(change.fields()))
        if not changes.count:
            say(_nothing(running.samples, wanted))


class _Pushed(NamedTuple):
    """What is replayed.

    Attributes:
        run: The run's name; empty for a file, which may be of any.
        lost: Seconds that a slow step loses at least.
    """

    rows: Iterator[Row]
    run: str = ""
    lost: float = 0.0


class _Counted:
    """Changes, and how many there were."""

    def __init__(self, changes: Iterable[Change]) -> None:
        self._changes = changes
        self.count = 0

    def __iter__(self) -> Iterator[Change]:
        for change in self._changes:
            self.count += 1
            yield change


class _Heading(NamedTuple):
    """The heading of a line of the summary."""

    alert: str
    severity: str
    key: str


def _section(config_file: Path | None) -> AlertsSection:
    from trackside_daemon.config.loading import ConfigError, load
    from trackside_daemon.service.config import Config

    try:
        section = load(Config, config_file).alerts
    except ConfigError as error:
        raise WrongError(str(error)) from None
    if section.rules:
        say(f"alerts.rules are not replayed: {', '.join(one.alert for one in section.rules)}")
    return section


def _wanted(only: list[str], severity: str, section: AlertsSection, run: str) -> Wanted:
    """What is asked for by name counts even where it is off."""
    from trackside_daemon.alerts.disabled import DisabledAlerts
    from trackside_daemon.detectors.rank_detectors import ALERTS
    from trackside_daemon.detectors.replay import Wanted
    from trackside_daemon.model.finding import SEVERITIES

    for alert in only:
        if alert not in ALERTS:
            raise WrongError(f"--only {shown(alert)}: none is called so; there are {', '.join(sorted(ALERTS))}")
    if severity not in SEVERITIES:
        raise WrongError(f"--severity {shown(severity)}: an alert is {', '.join(SEVERITIES)}")
    off = DisabledAlerts(section.off)
    return Wanted(frozenset(only), severity, {alert for alert in ALERTS if off.contains(alert, {"run": run})} - {*only})


def _nothing(samples: Mapping[tuple[int, str], int], wanted: Wanted) -> str:
    """What was looked at in vain."""
    ranks, keys = {rank for rank, _ in samples}, sorted({key for _, key in samples})
    some = ", ".join(map(shown, keys[:NAMED])) + (", …" if len(keys) > NAMED else "")
    looked = (
        f"{_many(sum(samples.values()), 'sample')} of {_many(len(keys), 'watched key')}{f' ({some})' if some else ''}"
    )
    chosen = wanted.alerts or wanted.off or wanted.least != "info"
    found = "nothing found of what is asked for" if chosen else "nothing found"
    return f"{looked}, {_many(len(ranks), 'rank')}: {found}; alerts of whole runs, as TrainingStalled, are not replayed"


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _pushed(name: str, directory: Path | None, url: str) -> _Pushed:
    if name == "-" or _is_file(name):
        return _Pushed(_of_file(name))
    return _of_run(find_history(directory, url), name)


def _of_file(name: str) -> Iterator[Row]:
    from trackside_daemon.cli.commands import replay_rows as rows

    bad = _Bad("standard input" if name == "-" else name)
    with _opened(name) as stream:
        yield from rows.read(rows.lines(stream), rows.Rows(), bad)
    bad.rest()


def _of_run(source: Source, name: str) -> _Pushed:
    from trackside_daemon.detectors.step_durations import LOST
    from trackside_daemon.history.directory import HistoryError
    from trackside_daemon.history.read.reader import UnknownRunError

    try:
        found = source.run(name)
    except (HistoryError, UnknownRunError) as error:
        raise WrongError(f"{name}: no such file, nor a run: {error}") from error
    _say_which(source, found, name)
    if found.get("trimmed"):
        say("older samples of this run were trimmed, and the detectors see only what is left")
    return _Pushed(_rows(source.export(found["id"], "jsonl").chunks, name), found["name"], LOST)


def _say_which(source: Source, found: Mapping[str, Any], name: str) -> None:
    """Which run it is, of several."""
    from trackside_daemon.history.read.reader import RunFilter

    if found["id"] != name == found["name"]:
        others = sum(one["name"] == name for one in source.runs(RunFilter(name)))
        if others > 1:
            say(f"run {shown(name)}: the newest of {others}, {found['id']}, begun {moment(found['started'])}")


def _rows(chunks: Iterable[bytes], name: str) -> Iterator[Row]:
    from trackside_daemon.cli.commands import replay_rows as rows

    durations = rows.Durations()
    for row in rows.read(rows.split(chunks), rows.Rows(numbered=False), _Bad(f"run {name}")):
        if (derived := durations.take(row)) is not None:
            yield derived
        yield row


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
    counts: dict[_Heading, Counter[str]] = {}
    ranks: dict[_Heading, set[int]] = {}
    for change in changes:
        line = _Heading(change.alert, change.severity, change.key)
        counts.setdefault(line, Counter())[change.state] += 1
        ranks.setdefault(line, set()).add(change.rank)
    header = [*("ALERT", "SEVERITY", "KEY", "RANKS"), *("FIRING", "REPEATED", "RESOLVED")]
    cells = [
        [*map(shown, line), str(len(ranks[line])), *(str(count[state]) for state in ("firing", "repeated", "resolved"))]
        for line, count in sorted(counts.items())
    ]
    return table(header, cells, right="<<<>>>>", flexible="  ~") if cells else iter(())
