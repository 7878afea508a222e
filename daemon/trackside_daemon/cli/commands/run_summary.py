"""What `trackside run` says at its end of the runs that its command has opened."""

from __future__ import annotations

import os
import sqlite3
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from trackside.transport.orphaned_spool import heads
from trackside.transport.paths import machine_id, spool_directories
from trackside_daemon.cli.commands.table import took
from trackside_daemon.cli.sources.errors import SourceError
from trackside_daemon.cli.sources.source import FileSource, Source
from trackside_daemon.history import directory
from trackside_daemon.history.read.reader import RunFilter, UnknownRunError
from trackside_daemon.model.text import duration, number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from trackside_daemon.cli.commands.run_daemon import Beside
    from trackside_daemon.cli.signal_forwarding import Signals

PATIENCE_SECONDS = 20.0
"""So long the daemon may take to have all that was pushed; a spool that a killed process has left it takes within ten."""

LOOK_SECONDS = 0.1
MOST = 10
"""So many of the newest runs are told of."""

_NO_STEP = ("eval", "checkpoint")


class Launch:
    """A command that has ended, and what the daemon beside it knows of it.

    Args:
        name: What its processes were given as ``$TRACKSIDE_LAUNCH``.
        daemon: That one.
        died_after: Seconds of the command until it ended by itself; None when it did not.
    """

    def __init__(self, name: str, daemon: Beside, died_after: float | None) -> None:
        self._name = name
        self._daemon = daemon
        self._died_after = died_after
        self._source: Source | None = daemon.source

    def tell(self, signals: Signals, say: Callable[[str], None]) -> None:
        """Wait until the daemon has all, or a signal comes, and say what became of each run."""
        daemon = self._daemon
        if daemon.died is not None:
            after = "" if self._died_after is None else f" {duration(self._died_after)} after the command's beginning"
            say(
                f"the daemon has ended by itself{after}, with status {daemon.died}; its log is {daemon.log}; "
                "what it does not have waits on disk for the next one"
            )
            self._source = FileSource(daemon.history, say)
        if self._source is None:
            say("the daemon cannot be asked, so there is no summary")
            return
        try:
            if self._source.live:
                self._wait(self._source, signals)
            self._tell(self._source, say)
        except (SourceError, directory.HistoryError, UnknownRunError, sqlite3.Error, OSError) as error:
            say(f"there is no summary: {error}")

    def _wait(self, source: Source, signals: Signals) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        while not signals.asked and time.monotonic() < until:
            if not any(run["ended"] is None for run in self._runs(source)) and not self._left():
                return
            signals.next(LOOK_SECONDS)

    def _runs(self, source: Source) -> list[dict[str, Any]]:
        return source.runs(RunFilter(launch=self._name))

    def _left(self) -> bool:
        """Whether a process of it has left something on disk."""
        with suppress(LookupError, OSError):
            spools = list(spool_directories(os.environ, os.getuid()))
            found = heads(spools, machine_id())
            return any(hello.about is not None and hello.about.launch == self._name for _, hello in found)
        return False

    def _tell(self, source: Source, say: Callable[[str], None]) -> None:
        runs = self._runs(source)
        if not runs:
            say("the command has opened no run: nothing was pushed")
        for run in reversed(runs[:MOST]):
            whole = source.run(run["id"])
            for line in lines(whole, source.events(run["id"]), source.alerts(run["id"])):
                say(line)
        if len(runs) > MOST:
            say(f"and {len(runs) - MOST} earlier ones: trackside runs{self._where()}")
        elif runs:
            say(f"more: trackside show {' or '.join(_words(runs))}{self._where()}")

    def _where(self) -> str:
        """The flag by which the commands find this history, where they need one."""
        history = self._daemon.history
        with suppress(directory.HistoryError):
            if history is None or _is_default(history):
                return ""
        return f" --storage.path={history}"


def _is_default(history: Path) -> bool:
    named = os.environ.get("TRACKSIDE_STORAGE__PATH", "")
    return str(history) == (named or str(directory.default_directory(os.environ, os.getuid())))


def _words(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """What `trackside show` is told of each: the name, where one has it alone."""
    names = [run["name"] for run in reversed(runs)]
    return list(dict.fromkeys(names)) if len(set(names)) == len(names) and " " not in "".join(names) else _ids(runs)


def _ids(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    return [run["id"] for run in reversed(runs)]


def lines(
    run: Mapping[str, Any], events: Sequence[Mapping[str, Any]], alerts: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """The lines about a run: its state and numbers, its ranks where one of several ended badly, its alerts.

    Args:
        run: As the history has it, with its metrics.
        events: Its own.
        alerts: Its own.
    """
    cause = f" ({run['cause']})" if run["cause"] else ""
    spent = took(run, time.time())
    steps = "no step" if run["step"] is None else f"step {run['step']}"
    facts = [f"{steps} after {duration(spent)}" if spent is not None else steps]
    facts += [f"loss {number(run['loss'])}"] if run["loss"] is not None else []
    speed = speeds(run)
    facts += [] if speed.step is None else [f"{_time(speed.step)} a step"]
    facts += [] if speed.tokens is None else [f"{speed.tokens:,.0f} tokens a second"]
    yield f"{run['name']}: {run['state']}{cause}, {', '.join(facts)}"
    ranks = list(_ranks(run, events))
    if ranks:
        yield f"{run['name']}: {', '.join(ranks)}"
    fired = Counter((one["alert"], one["severity"]) for one in alerts if one["severity"] != "info")
    if fired:
        told = (
            f"{alert} ({severity})" + (f" {count} times" if count > 1 else "")
            for (alert, severity), count in fired.items()
        )
        yield f"{run['name']}: alerts: {', '.join(told)}"


class Speeds(NamedTuple):
    """From the first step of the last attempt to its last; None where that cannot be told.

    Attributes:
        step: Seconds of a step of its lowest rank, without evaluation and checkpoints.
        tokens: Those of all ranks in a second.
    """

    step: float | None = None
    tokens: float | None = None


def speeds(run: Mapping[str, Any]) -> Speeds:
    """How fast a run was; *run* as the history has it, with its metrics."""
    told = [one for one in run["metrics"] if one["attempt"] == run["attempt"] and one["count"] > 1]
    told = [one for one in told if one["first_time"] is not None and one["last_time"] > one["first_time"]]
    if not told:
        return Speeds()
    lowest = min(one["rank"] for one in told)
    long = max((one for one in told if one["rank"] == lowest), key=lambda one: one["last_time"] - one["first_time"])
    phases: Mapping[str, Any] = next(
        (one.get("phases", {}) for one in run["attempt_list"] if one["attempt"] == run["attempt"]), {}
    )
    apart = sum(phases.get(str(lowest), {}).get(phase, 0.0) for phase in _NO_STEP)
    seconds, steps = long["last_time"] - long["first_time"] - apart, long["last_step"] - long["first_step"]
    tokens = [one for one in told if one["key"] == "tokens" and one["mean"] != "nan"]
    rate = sum(one["mean"] * (one["count"] - 1) / (one["last_time"] - one["first_time"]) for one in tokens)
    return Speeds(seconds / steps if steps > 0 and seconds > 0 else None, rate or None)


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else duration(seconds)


def _ranks(run: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """How each rank of the last attempt has ended, where there are several and one of them did not finish."""
    ended = {
        one["rank"]: one["fields"] for one in events if one["kind"] == "rank_ended" and one["attempt"] == run["attempt"]
    }
    if len(ended) < 2 or all(one["state"] == "finished" for one in ended.values()):
        return
    for rank, fields in sorted(ended.items()):
        cause = f" ({fields['cause']})" if fields.get("cause") else ""
        yield f"rank {rank} {fields['state']}{cause}"
