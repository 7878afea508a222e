"""The command replay: runs the detectors over recorded pushes."""

from __future__ import annotations

import io
import json
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import typer

from trackside.os_errors import os_error_text
from trackside_daemon.cli.errors import CommandError, errors_reported, warn
from trackside_daemon.cli.options import StoragePath, Url, argument, flag, option
from trackside_daemon.cli.output import print_lines
from trackside_daemon.documents.text import table
from trackside_daemon.model.text import counted, moment, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import BinaryIO

    from trackside_daemon.alerts.settings import AlertsSection
    from trackside_daemon.cli.sources.source import Source
    from trackside_daemon.detectors.replay import AlertChange, PushedRow, Wanted

NAMED = 10  # maximum number of invalid lines, and of keys, to list


class _InvalidLines:
    """Reports the first invalid line of each kind, and counts all."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._reasons: set[str] = set()
        self.count = 0

    def __call__(self, number: int, reason: str) -> None:
        self.count += 1
        if reason not in self._reasons and len(self._reasons) < NAMED:
            self._reasons.add(reason)
            warn(f"{self._file}: line {number}: {reason}")

    def report_rest(self) -> None:
        """Report how many were not listed."""
        if self.count > len(self._reasons):
            warn(f"{self._file}: {self.count - len(self._reasons)} more lines are invalid")


def replay(
    file: Annotated[
        str, argument("PATH|RUN", "A file of JSON lines or CSV, a run of another tool, - for standard input, or a run.")
    ],
    *,
    only: Annotated[list[str] | None, option("ALERT", "Only this alert; may be repeated.")] = None,
    severity: Annotated[str, option("info|warning|critical", "Minimum severity.")] = "info",
    summary: Annotated[bool, flag("--summary", "Print a table of counts instead of JSON lines.")] = False,
    explain: Annotated[str, option("ALERT", "Print why this alert fires at a step, or why not, with --at.")] = "",
    at: Annotated[int | None, option("STEP", "The step to explain.")] = None,
    rank: Annotated[int, option("N", "The rank to explain.")] = 0,
    config_file: Annotated[Path | None, option("FILE", "YAML file of the daemon's settings.", "--config.file")] = None,
    storage_path: StoragePath = None,
    url: Url = "",
) -> None:
    """Run the detectors over a file or a run, and print a JSON line for each change of an alert.

    Each line of the file is a push: {"step": 7, "time": 1700000000.5, "values": {"loss": 2.5}, "rank": 0, "phase":
    ""}. Only the values are required; {"step": 7, "loss": 2.5} is a push, too. trackside export writes such files.
    The path may also be what trackside import reads.

    In the output, "index" is the number of the line, from 0; for a run that of the key's sample. The
    step_duration_seconds of a run are derived from the times of its steps. Environment variables apply as for the
    daemon. Not replayed are alerts.rules, and alerts about a whole run or its ranks (TrainingStalled, StragglerRank,
    …).

    --explain replays the rows up to a step with other thresholds, one at a time, and prints for each at which value
    the alert no longer fires there, or begins to. The first one decides.
    """
    with errors_reported():
        from trackside_daemon.alerts.settings import key_roles
        from trackside_daemon.cli.commands import replay_explain
        from trackside_daemon.detectors.replay import Replay
        from trackside_daemon.detectors.what_if import RecordedPushes

        section = section_of(config_file)
        if explain or at is not None:
            if not explain or at is None:
                raise CommandError("--explain ALERT and --at STEP need each other")
            if only or summary or severity != "info":
                raise CommandError("--explain is about one alert; give it without --only, --severity and --summary")
            replay_explain.check(explain)
            pushed = _pushed(file, storage_path, url)
            roles = key_roles(section).of_run(pushed.roles)
            recording = RecordedPushes(pushed.rows, lost=pushed.lost, ranks=[rank], roles=roles)
            print_lines(replay_explain.explain(recording, explain, at, rank, section.thresholds))
            return
        pushed = _pushed(file, storage_path, url)
        wanted = _wanted(only or [], severity, section, pushed.run)
        roles = key_roles(section).of_run(pushed.roles)
        running = Replay(wanted, section.thresholds, lost=pushed.lost, roles=roles)
        changes = _Counted(change for row in pushed.rows for change in running.evaluate(row))
        if summary:
            print_lines(_summary(changes))
        else:
            for change in changes:
                typer.echo(json.dumps(change.fields()))
        for number, key, reason in running.readings():
            warn(
                f"{shown(key)} of rank {number} is read as an objective, which raises information at most: {shown(reason)}"
            )
        if not changes.count:
            warn(_nothing(running.samples, wanted))


class Pushed(NamedTuple):
    """Recorded pushes."""

    rows: Iterator[PushedRow]  # the pushes, oldest first
    run: str = ""  # name of the run; empty for a file
    lost: float = 0.0  # minimum number of seconds that a slow step loses
    roles: Mapping[str, str] = {}  # roles of keys that the run states


class _Counted:
    """An iterator that counts its changes."""

    def __init__(self, changes: Iterable[AlertChange]) -> None:
        self._changes = changes
        self.count = 0

    def __iter__(self) -> Iterator[AlertChange]:
        for change in self._changes:
            self.count += 1
            yield change


class _Heading(NamedTuple):
    """The key of a line in the summary."""

    alert: str
    severity: str
    key: str


def section_of(config_file: Path | None) -> AlertsSection:
    """Return the settings of alerts, from a file and from the environment.

    Raises:
        CommandError: The file is invalid.
    """
    from trackside_daemon.config.loading import ConfigError, load
    from trackside_daemon.service.config import Config

    try:
        section = load(Config, config_file).alerts
    except ConfigError as error:
        raise CommandError(str(error)) from None
    if section.rules:
        warn(f"alerts.rules are not replayed: {', '.join(rule.alert for rule in section.rules)}")
    return section


def _wanted(only: list[str], severity: str, section: AlertsSection, run: str) -> Wanted:
    """Return the alerts to report; those that *only* names are reported even if they are off."""
    from trackside_daemon.alerts.disabled import DisabledAlerts
    from trackside_daemon.detectors.rank_detectors import ALERTS
    from trackside_daemon.detectors.replay import Wanted
    from trackside_daemon.model.finding import SEVERITIES

    for alert in only:
        if alert not in ALERTS:
            raise CommandError(f"--only {shown(alert)}: no such alert; give one of {', '.join(sorted(ALERTS))}")
    if severity not in SEVERITIES:
        raise CommandError(f"--severity {shown(severity)}: give one of {', '.join(SEVERITIES)}")
    off = DisabledAlerts(section.off)
    return Wanted(frozenset(only), severity, {alert for alert in ALERTS if off.contains(alert, {"run": run})} - {*only})


def _nothing(samples: Mapping[tuple[int, str], int], wanted: Wanted) -> str:
    """Return a line about what was replayed without finding anything."""
    ranks, keys = {rank for rank, _ in samples}, sorted({key for _, key in samples})
    some = ", ".join(map(shown, keys[:NAMED])) + (", …" if len(keys) > NAMED else "")
    names = f" ({some})" if some else ""
    replayed = f"{counted(sum(samples.values()), 'sample')} of {counted(len(keys), 'monitored key')}{names}"
    filtered = wanted.alerts or wanted.off or wanted.least != "info"
    result = "no alert matches" if filtered else "no alerts"
    return f"{replayed}, {counted(len(ranks), 'rank')}: {result}; alerts about whole runs, as TrainingStalled, are not replayed"


def _pushed(name: str, directory: Path | None, url: str) -> Pushed:
    if (recorded := _recorded(name)) is not None:
        return recorded
    if name == "-" or _is_file(name):
        return Pushed(_of_file(name))
    from trackside_daemon.cli.sources.daemon_lookup import find_history

    return pushed_of_run(find_history(directory, url), name)


def _recorded(name: str) -> Pushed | None:
    """Return the pushes of the run that another tool has recorded at this path; None if it is something else."""
    from trackside_daemon.bridges.finding import find_runs
    from trackside_daemon.bridges.foreign_run import ForeignRunError
    from trackside_daemon.cli.commands.replay_rows import timed
    from trackside_daemon.detectors.step_durations import LOST

    directory = _is_directory(name)
    if not (directory or _is_file(name)):
        return None
    try:
        found = find_runs(name, {})
    except (ForeignRunError, OSError) as error:
        if directory:  # it may also be the name of a run
            return None
        raise CommandError(f"{name}: {os_error_text(error)}" if isinstance(error, OSError) else str(error)) from None
    if len(found) > 1:
        some = ", ".join(shown(run.name) for run in found[:NAMED])
        raise CommandError(f"{name}: there are {len(found)} runs; give the path of one, or import them: {some}")
    return Pushed(timed(found[0]), found[0].name, LOST) if found else None


def _of_file(name: str) -> Iterator[PushedRow]:
    from trackside_daemon.cli.commands import replay_rows as rows

    shown_name = "standard input" if name == "-" else name
    invalid = _InvalidLines(shown_name)
    with _opened(name) as opened:
        stream = io.BufferedReader(cast("Any", opened)) if not isinstance(opened, io.BufferedReader) else opened
        if rows.is_csv(stream):
            yield from rows.read_table(stream, shown_name)
        else:
            yield from rows.read(rows.lines(stream), rows.RowConverter(), invalid)
    invalid.report_rest()


def pushed_of_run(source: Source, name: str) -> Pushed:
    """Return the pushes of a stored run, by its id or name.

    Raises:
        CommandError: There is no such run.
    """
    from trackside.roles import usable
    from trackside_daemon.cli.sources.source import NotFoundError
    from trackside_daemon.detectors.step_durations import LOST
    from trackside_daemon.history.directory import HistoryError
    from trackside_daemon.questions.runs import Run
    from trackside_daemon.questions.series import Export

    try:
        run = source.ask(Run(id=name, limit=0))
    except (HistoryError, NotFoundError) as error:
        raise CommandError(f"{name}: no such file, and no such run: {error}") from error
    _warn_of_namesakes(source, run, name)
    if run.get("trimmed"):
        warn("older samples of this run were trimmed; the detectors evaluate only the remaining ones")
    roles = usable(run["attempt_list"][-1].get("roles")) if run["attempt_list"] else {}
    return Pushed(_rows(source.export(Export(id=run["id"], format="jsonl")).chunks, name), run["name"], LOST, roles)


def _warn_of_namesakes(source: Source, run: Mapping[str, Any], name: str) -> None:
    """Report which run is replayed if several have the name."""
    from trackside_daemon.questions.runs import Runs

    if run["id"] != name == run["name"]:
        count = sum(other["name"] == name for other in source.ask(Runs(name=name))["runs"])
        if count > 1:
            warn(f"run {shown(name)}: the newest of {count}, {run['id']}, started {moment(run['started'])}")


def _rows(chunks: Iterable[bytes], name: str) -> Iterator[PushedRow]:
    from trackside_daemon.cli.commands import replay_rows as rows

    return rows.with_durations(
        rows.read(rows.split(chunks), rows.RowConverter(numbered=False), _InvalidLines(f"run {name}"))
    )


def _is_directory(name: str) -> bool:
    try:
        return bool(name) and Path(name).is_dir()
    except (OSError, ValueError):
        return False


def _is_file(name: str) -> bool:
    """Return whether a file or a pipe has this name."""
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
        raise CommandError(f"{name}: {os_error_text(error)}") from error


def _summary(changes: Iterable[AlertChange]) -> Iterator[str]:
    counts: dict[_Heading, Counter[str]] = {}
    ranks: dict[_Heading, set[int]] = {}
    for change in changes:
        line = _Heading(change.alert, change.severity, change.key)
        counts.setdefault(line, Counter())[change.state] += 1
        ranks.setdefault(line, set()).add(change.rank)
    header = ["ALERT", "SEVERITY", "KEY", "RANKS", "FIRING", "REPEATED", "RESOLVED"]
    cells = [
        [*map(shown, line), str(len(ranks[line])), *(str(count[state.lower()]) for state in header[-3:])]
        for line, count in sorted(counts.items())
    ]
    return table(header, cells, right="<<<>>>>", flexible="  ~") if cells else iter(())
