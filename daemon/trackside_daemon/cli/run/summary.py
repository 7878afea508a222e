"""The summary that `trackside run` prints at its end, of the runs that its command has opened."""

from __future__ import annotations

import os
import sqlite3
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from trackside.environment.paths import machine_id, orphan_directories
from trackside.transport.orphaned_spool import orphaned_hellos
from trackside_daemon.cli.sources.file_source import FileSource
from trackside_daemon.cli.sources.source import SourceError
from trackside_daemon.detectors.deaths import ALERTS as DEATHS
from trackside_daemon.documents.diagnosis import listed_causes
from trackside_daemon.documents.run import elapsed
from trackside_daemon.history import directory
from trackside_daemon.model.text import duration, number
from trackside_daemon.questions import table as questions
from trackside_daemon.questions.artifacts import with_reported
from trackside_daemon.questions.runs import MOST_METRICS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from trackside_daemon.cli.run.command_daemon import CommandDaemon
    from trackside_daemon.cli.run.signal_forwarding import Signals
    from trackside_daemon.cli.run.trouble_watch import CommandTrouble
    from trackside_daemon.cli.sources.source import Source

# Time limit for the daemon to receive all pushes; it reads the spool of a killed process within ten.
COMPLETE_SECONDS = 20.0

# Time limit for the alert of a death, which follows the end of its run in the history; it may be turned off.
ALERT_SECONDS = 2.0

POLL_SECONDS = 0.1
MAX_RUNS = 10  # maximum number of runs in the summary, the newest
WORTH_SECONDS = 1.0  # a cause that cost less is not worth a line


class RunFacts(NamedTuple):
    """Facts about the run of a command that has ended."""

    run: str = ""  # its id; empty if there is none that did not finish. Of several, the newest
    name: str = ""
    runs: int = 0  # number of the command's runs
    cause: str = ""  # what it died of; empty if unknown
    step: int | None = None  # its last step; None before the first
    checkpoints: Sequence[Mapping[str, Any]] = ()  # of the run, the newest first; see `questions.Checkpoints`

    def checkpoint(self, trouble: CommandTrouble | None, doubted: set[tuple[str, float]]) -> tuple[str, list[str]]:
        """Return the path of the newest intact checkpoint that is not in doubt, and why newer ones are none.

        What a *trouble* puts in doubt is added to what is *doubted* already, by path and time.
        """
        from trackside_daemon.checkpoints.overview import first_usable

        in_doubt = (one for one in self.checkpoints if trouble is not None and trouble.doubts(one))
        doubted |= {(one["path"], one["time"]) for one in in_doubt}
        return first_usable(one for one in self.checkpoints if (one["path"], one["time"]) not in doubted)


class CommandSummary:
    """The runs of a command that has ended.

    Args:
        launch: Value of ``$TRACKSIDE_LAUNCH`` in its processes.
        daemon: The daemon that accepted its pushes.
        died_after: Seconds from the command's start to the daemon's end; None if it did not end before the command.
        nothing: Why nothing may have been found in the command, for one that opens no run.
    """

    def __init__(self, launch: str, daemon: CommandDaemon, died_after: float | None, nothing: str) -> None:
        self._launch = launch
        self._daemon = daemon
        self._died_after = died_after
        self._nothing = nothing
        self._source: Source | None = daemon.source

    def report(self, signals: Signals, report: Callable[[str], None]) -> None:
        """Wait until the daemon has received everything, or a signal arrives, and report each run line by line."""
        daemon = self._daemon
        if daemon.died is not None:
            after = "" if self._died_after is None else f" {duration(self._died_after)} after the command started"
            report(
                f"the daemon ended unexpectedly{after}, with status {daemon.died}; see its log {daemon.log}; "
                "what it did not receive is in the spool for the next daemon"
            )
        try:
            source = self._settled(signals, report)
            if source is None:
                report("no summary, because this user may not query the daemon")
            else:
                self._report_runs(source, report)
        except (SourceError, directory.HistoryError, sqlite3.Error, OSError) as error:
            report(f"no summary: {error}")

    def facts(self, signals: Signals, report: Callable[[str], None], ended: str = "") -> RunFacts:
        """Wait as `report` does, and return what a restart of the command needs to know.

        *ended* is the id of the run that `trackside run` has ended, which may call that a finish.
        """
        try:
            source = self._settled(signals, report)
            runs = [] if source is None else self._runs(source)
            unfinished = [run for run in runs if run["id"] == ended] or [
                run for run in runs if run["state"] != "finished"
            ]
            if source is None or not unfinished:
                return RunFacts()
            newest = max(unfinished, key=lambda run: run["started"])
            found = with_reported(source.ask, source.ask(questions.Checkpoints(id=newest["id"])))
            return RunFacts(newest["id"], newest["name"], len(runs), newest["cause"], newest["step"], found[::-1])
        except (SourceError, directory.HistoryError, sqlite3.Error, OSError) as error:
            report(f"nothing is known of the command's runs: {error}")
            return RunFacts()

    def _settled(self, signals: Signals, report: Callable[[str], None]) -> Source | None:
        """Wait until the daemon has received everything, or a signal arrives; return what has the runs, None for nothing."""
        if self._daemon.died is not None:
            self._source = FileSource(self._daemon.history, report)
        source = self._source
        if source is not None and source.live:
            self._wait(source, signals)
        return source

    def _wait(self, source: Source, signals: Signals) -> None:
        until = time.monotonic() + COMPLETE_SECONDS
        ended_at = 0.0
        while not signals.ending and (now := time.monotonic()) < until:
            runs = self._runs(source)
            if not any(run["ended"] is None for run in runs) and not self._left():
                ended_at = ended_at or now
                if now - ended_at >= ALERT_SECONDS or not any(_lacks_alert(source, run) for run in runs):
                    return
            signals.get(POLL_SECONDS)

    def _runs(self, source: Source) -> list[dict[str, Any]]:
        return list(source.ask(questions.Runs(launch=self._launch))["runs"])

    def _left(self) -> bool:
        """Return whether a process of the command has left what the daemon has not stored yet."""
        with suppress(LookupError, OSError):
            places = orphan_directories(self._daemon.endpoint)
            hellos = [hello for _, hello, _ in orphaned_hellos(places, machine_id(), locked=True)]
            return any(hello.about is not None and hello.about.launch == self._launch for hello in hellos)
        return False

    def _problem(self) -> str:
        """Return why the daemon cannot write its history now; empty if it can."""
        return "" if self._daemon.source is None else str(self._daemon.source.status()["storage_problem"])

    def _report_runs(self, source: Source, report: Callable[[str], None]) -> None:
        runs = self._runs(source)
        if not runs and (problem := self._problem()):
            report(
                f"the history has nothing of the command yet: {problem}; what it pushed waits on disk for the next daemon"
            )
        elif not runs:
            report(f"the command opened no run: {self._nothing}")
        for run in reversed(runs[:MAX_RUNS]):
            whole = source.ask(questions.Run(id=run["id"], limit=MOST_METRICS))
            events = source.ask(questions.Events(run=run["id"]))["events"]
            for line in lines(whole, events, source.ask(questions.Alerts(run=run["id"]))["alerts"]):
                report(line)
            if why := _why(source.ask(questions.Diagnosis(id=run["id"]))):
                about = "" if why.startswith(f"{run['name']}: ") else f"{run['name']}: "
                end = "" if why.endswith(".") else ";"
                report(f"{about}{why}{end} trackside why {run['id']} has the advice{self._where()}")
        if len(runs) > MAX_RUNS:
            report(f"{len(runs) - MAX_RUNS} earlier runs: trackside runs{self._where()}")
        elif runs:
            report(f"details: trackside show {' or '.join(_words(runs))}{self._where()}")

    def _where(self) -> str:
        """Return the flag by which commands find this history; empty for the default one."""
        history = self._daemon.history
        with suppress(directory.HistoryError):
            if history is None or _is_default(history):
                return ""
        return f" --storage.path={history}"


def _why(diagnosis: Mapping[str, Any]) -> str:
    """Return what stops a run, else the costliest cause; empty if none is worth a line."""
    causes = listed_causes(diagnosis)[:1]
    worth = (one["summary"] for one in causes if one["lost_seconds"] is None or one["lost_seconds"] >= WORTH_SECONDS)
    return str(diagnosis.get("verdict") or next(worth, ""))  # older daemons have no verdict


def _lacks_alert(source: Source, run: Mapping[str, Any]) -> bool:
    """Return whether the history has no alert of the death of a run that failed."""
    return run["state"] in {"failed", "lost"} and not any(
        alert["alert"] in DEATHS for alert in source.ask(questions.Alerts(run=run["id"]))["alerts"]
    )


def _is_default(history: Path) -> bool:
    configured = os.environ.get("TRACKSIDE_STORAGE__PATH", "")
    return str(history) == (configured or str(directory.default_directory(os.environ, os.getuid())))


def _words(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the arguments of `trackside show`: the names if they are distinct, else the ids."""
    names = [run["name"] for run in reversed(runs)]
    return (
        names if len(set(names)) == len(names) and " " not in "".join(names) else [run["id"] for run in reversed(runs)]
    )


def lines(
    run: Mapping[str, Any], events: Sequence[Mapping[str, Any]], alerts: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Yield the lines about a run: its state and speed, its ranks if one of several did not finish, and its alerts.

    Args:
        run: The run, with its metrics.
        events: Its events.
        alerts: Its alerts.
    """
    cause = f" ({run['cause']})" if run["cause"] else ""
    spent = elapsed(run, time.time())
    steps = "no step" if run["step"] is None else f"step {number(run['step'])}"
    facts = [f"{steps} after {duration(spent)}" if spent is not None else steps]
    facts += [f"loss {number(run['loss'])}"] if run["loss"] is not None else []
    speed = speeds(run)
    facts += [] if speed.step is None else [f"{duration(speed.step)} per step"]
    facts += [] if speed.tokens is None else [f"{number(round(speed.tokens))} tokens per second"]
    yield f"{run['name']}: {run['state']}{cause}, {', '.join(facts)}"
    ranks = list(_ranks(run, events))
    if ranks:
        yield f"{run['name']}: {', '.join(ranks)}"
    fired = Counter((alert["alert"], alert["severity"]) for alert in alerts if alert["severity"] != "info")
    if fired:
        texts = (
            f"{alert} ({severity})" + (f" {count} times" if count > 1 else "")
            for (alert, severity), count in fired.items()
        )
        yield f"{run['name']}: alerts: {', '.join(texts)}"


class Speeds(NamedTuple):
    """Average speeds of the last attempt; None if they are unknown."""

    step: float | None = None  # seconds per step of its lowest rank, without evaluation and checkpoints
    tokens: float | None = None  # tokens of all ranks per second


def speeds(run: Mapping[str, Any]) -> Speeds:
    """Return the speeds of a run with metrics."""
    metrics = [
        metric
        for metric in run["metrics"]
        if metric["attempt"] == run["attempt"]
        and metric["count"] > 1
        and metric["first_time"] is not None
        and metric["last_time"] > metric["first_time"]
    ]
    if not metrics:
        return Speeds()
    lowest = min(metric["rank"] for metric in metrics)
    (last,) = (attempt for attempt in run["attempt_list"] if attempt["attempt"] == run["attempt"])
    step = last.get("step_seconds", {}).get(str(lowest))
    if step is None:  # as of an imported run, whose process did not measure its steps
        longest = max((metric for metric in metrics if metric["rank"] == lowest), key=_span)
        steps = longest["last_step"] - longest["first_step"]
        step = _span(longest) / steps if steps > 0 else None
    tokens = [metric for metric in metrics if metric["key"] == "tokens" and metric["mean"] != "nan"]
    # The tokens of the first sample were processed before the span begins.
    rate = sum(metric["mean"] * (metric["count"] - 1) / _span(metric) for metric in tokens)
    return Speeds(step, rate or None)


def _span(metric: Mapping[str, Any]) -> float:
    """Return the seconds from a metric's first sample to its last."""
    return float(metric["last_time"] - metric["first_time"])


def _ranks(run: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the end of each rank of the last attempt if there are several and one of them did not finish."""
    ended = {
        event["rank"]: event["fields"]
        for event in events
        if event["kind"] == "rank_ended" and event["attempt"] == run["attempt"]
    }
    if len(ended) < 2 or all(fields["state"] == "finished" for fields in ended.values()):
        return
    for rank, fields in sorted(ended.items()):
        cause = f" ({fields['cause']})" if fields.get("cause") else ""
        yield f"rank {rank} {fields['state']}{cause}"
