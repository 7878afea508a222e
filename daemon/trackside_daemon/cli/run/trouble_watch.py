"""Watch the runs of a command for what `trackside run` ends it for: a proven hang, a NaN that stays, a chosen alert."""

from __future__ import annotations

import threading
import time
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from trackside_daemon.alerts.active_alert import OCCURRENCES
from trackside_daemon.captures.hang.proof import HangProof
from trackside_daemon.captures.hang.verdict import hanging
from trackside_daemon.model.records import is_critical
from trackside_daemon.model.text import duration, matches_wildcards
from trackside_daemon.questions import table as questions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from trackside_daemon.cli.run.restarts import StopOn
    from trackside_daemon.cli.sources.source import Source
    from trackside_daemon.linux.job_processes import JobProcesses

POLL_SECONDS = 2.0
STILL_SECONDS = 5.0  # for which no process may do anything before a run that stands still is ended
MOST_STILL_SECONDS = 80.0  # the same for one that was busy in between again and again
AWAY_SECONDS = 15.0  # between two answers, from which on what the daemon says of the time between proves nothing
NAN_SECONDS = 30.0  # for which a value has to be NaN


class CommandTrouble(NamedTuple):
    """Why a command has to end."""

    kind: str  # what happened; ``stop`` for an alert of ``--stop-on``
    run: str  # id of the run
    text: str  # what happened, in words
    line: str  # the same for people, with more
    step: int | None = None  # the first step that is in doubt; None if only the time is
    since: float = inf  # the Unix time from which on everything is in doubt; infinity for never

    def doubts(self, checkpoint: Mapping[str, Any]) -> bool:
        """Return whether a checkpoint of `questions.Checkpoints` may have what is wrong in it."""
        late = self.step is not None and (checkpoint["step"] is None or checkpoint["step"] >= self.step)
        return late or checkpoint["time"] >= self.since  # a number in a name may count something else, such as epochs


class TroubleWatch:
    """A thread that asks the daemon about the runs of a command, until one is in trouble.

    Args:
        source: The API of a live daemon.
        launch: Value of ``$TRACKSIDE_LAUNCH`` in the command's processes.
        processes: They.
        found: Called once, in the thread, with the trouble.
        kinds: ``hang`` and ``nan``, or one of them, if they count as a trouble.
        stop_on: Alerts that do.
    """

    def __init__(
        self,
        source: Source,
        launch: str,
        processes: JobProcesses,
        found: Callable[[CommandTrouble], None],
        *,
        kinds: Collection[str],
        stop_on: Sequence[StopOn],
    ) -> None:
        self._source, self._launch, self._processes = source, launch, processes
        self._kinds, self._stop_on, self._found = kinds, stop_on, found
        self._began = time.time()
        self._known_since = self._asked = time.time()  # the daemon has answered all the time since
        self._still: dict[int, float] = {}  # seconds that the next proof has to last, by id of the alert
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="trackside-troubles", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stopping.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopping.wait(POLL_SECONDS):
            try:
                trouble = self._poll()
            except Exception:  # noqa: BLE001  what cannot be asked or judged, as while the daemon is away, proves nothing
                trouble = None
            if trouble is not None:
                self._found(trouble)
                return

    def _poll(self) -> CommandTrouble | None:
        runs = self._source.ask(questions.Runs(launch=self._launch))["runs"]
        now = time.time()
        if now - self._asked > AWAY_SECONDS:  # it was away, or this machine was asleep
            self._known_since = now
        self._asked = now
        found = [self._trouble_of(run, now) for run in runs if run["ended"] is None]
        stops = next((one for one in found if one is not None and one.kind == "stop"), None)
        # A run of the command that goes on must not end with another that hangs.
        return stops or (found[0] if found and None not in found else None)

    def _trouble_of(self, run: Mapping[str, Any], now: float) -> CommandTrouble | None:
        alerts = self._source.ask(questions.Alerts(run=run["id"], firing=True))["alerts"]
        judged = (
            self._judge(run, alert, now)
            for alert in alerts
            # An alert fires for a while after its trouble.
            if alert["started"] >= self._began and "recovered" not in alert["evidence"]
        )
        return next((one for one in judged if one is not None), None)

    def _judge(self, run: Mapping[str, Any], alert: Mapping[str, Any], now: float) -> CommandTrouble | None:
        name, times = alert["alert"], alert["evidence"].get(OCCURRENCES)
        since = times[-1]["time"] if times else alert["started"]
        fires = now - since
        for stop in self._stop_on:
            if matches_wildcards(name, stop.alert) and fires >= stop.seconds:
                line = f"--stop-on {name}, which has fired for {duration(fires)}: {alert['summary']}"
                return CommandTrouble("stop", run["id"], name, line)
        if name == "TrainingStalled" and "hang" in self._kinds and alert["started"] >= self._known_since:
            line = self._proven(alert)
            if line and self._still_fires(run, alert):
                text = str(alert["evidence"]["hang"]["text"]).rstrip(".")
                return CommandTrouble("hang", run["id"], text[:1].lower() + text[1:], line.rstrip("."))
        if name == "NonFinite" and "nan" in self._kinds and is_critical(alert) and fires >= NAN_SECONDS:
            step = alert["evidence"].get("doubtful_from_step")
            return CommandTrouble("nan", run["id"], alert["summary"], alert["summary"], step, since)
        return None

    def _still_fires(self, run: Mapping[str, Any], alert: Mapping[str, Any]) -> bool:
        firing = self._source.ask(questions.Alerts(run=run["id"], firing=True))["alerts"]
        return any(one["id"] == alert["id"] and hanging(one) for one in firing)

    def _proven(self, alert: Mapping[str, Any]) -> str:
        """Return the verdict, if no rank does anything, except for those that wait in a collective; else an empty text.

        A training that was busy, and did nothing for a moment, proves nothing: it has to be still for twice as long then.
        """
        proof = HangProof(alert, {one.pid: one for one in self._processes.find()})
        seconds = self._still.get(alert["id"], STILL_SECONDS)
        if not proof.text or self._stopping.wait(seconds):
            return ""
        self._asked += seconds
        self._still[alert["id"]] = min(seconds * 2, MOST_STILL_SECONDS)
        return proof.text if proof.holds(seconds) else ""
