"""Verdicts on runs that hang: connects the alerts with the flight recorders of the ranks."""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from trackside.wire import Flight
from trackside_daemon.alerts.active_alert import CONCLUSION, last_occurrence
from trackside_daemon.alerts.firing_alerts import Escalation
from trackside_daemon.captures.captures import CaptureError, CaptureRequest
from trackside_daemon.captures.hang.cases import Absent, RankDump, rank_dump
from trackside_daemon.captures.hang.ras import compared, ras_view
from trackside_daemon.captures.hang.verdict import NO_ANSWER, PLACES, HangVerdict, verdict
from trackside_daemon.captures.kinds.kind import AskRanks
from trackside_daemon.collectors.process.process import TrainingProcess
from trackside_daemon.collectors.process.process_tree import read_stat
from trackside_daemon.collectors.process.ranks import ProcessStatuses
from trackside_daemon.detectors.deaths import how_ended
from trackside_daemon.model.capture import AlertLink
from trackside_daemon.model.families import training as f
from trackside_daemon.model.families.gpu import RANK_INFO, UTILIZATION
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import ENDED, STALLS, Alert, AlertNote
from trackside_daemon.model.stall import is_quiet, usual_step
from trackside_daemon.model.state import State
from trackside_daemon.model.text import number

ALERTS = STALLS | {"TrainingProcessDied"}

ANSWERS_APART_SECONDS = 1.0  # seconds between two answers of a rank that makes no progress
# Seconds between two tries, while an alert fires that has no verdict yet, or one on a busy rank.
RETRIES = (5.0, 15.0, 60.0, 300.0)
BUSY = 0.03  # CPU seconds of a main thread between the two answers from which on it does not wait
GPU_SHARE = 0.05  # of the time, from which on a GPU is busy
DEADLOCKS = ("other_operation", "other_shape")  # kinds that never end, whatever the GPUs do that wait
AGAIN_SECONDS = 900.0  # least time between two captures of a run for one alert
MAX_WAITING = 64  # most alerts that wait for a verdict, each in a thread; further ones get none
MAX_UNSEEN_RANKS = 65_536  # most ranks of a run that are named as unseen

log = logging.getLogger("trackside")

# Why a process does not answer, by the state of its main thread: proc_pid_stat(5).
_STATES = {
    "T": "it is stopped, and `kill -CONT {pid}` continues it",
    "t": "a debugger has stopped it",
    "D": "it waits for a device or a file system",
    "S": "a call holds the GIL",
    "R": "a call holds the GIL, or it gets no CPU time",
}


PAUSED = frozenset("Tt")  # of these, those of a process that somebody holds


class _Hang(NamedTuple):
    """Run that may hang."""

    run: str  # its id
    name: str
    # When each rank last pushed a step, by its own clock, as the alert began: another time is progress. None if one
    # rank has ended, so that progress proves nothing.
    pushed: Mapping[int, float] | None
    subject: int | None = None  # only this rank makes no progress; None for the whole run
    causes: Mapping[int, str] = {}  # of what ranks died, as far as the alert has it


class Hangs:
    """Listener of alerts in the pipeline's thread, where it only queues them.

    Args:
        ask: See `AskRanks`.
        state: Newest values of all families.
        processes: Returns the processes of the training as of the last tick.
        publish: Called with a batch that has the verdict as an `AlertNote`.
        capture: Begins a capture.
        apart: See `ANSWERS_APART_SECONDS`; *retries* is `RETRIES`.
    """

    def __init__(
        self,
        ask: AskRanks,
        state: State,
        processes: Callable[[], Sequence[TrainingProcess]],
        publish: Callable[[Batch], None],
        capture: Callable[[CaptureRequest], object],
        *,
        apart: float = ANSWERS_APART_SECONDS,
        retries: Sequence[float] = RETRIES,
    ) -> None:
        self._ask, self._apart, self._retries = ask, apart, retries
        self._capture = capture
        self._captured: dict[tuple[str, str], float] = {}  # when, by run and alert
        self._state = state
        self._processes = processes
        self._publish = publish
        self._escalation = Escalation()
        self._stopping = threading.Event()
        self._room = threading.BoundedSemaphore(MAX_WAITING)
        self._threads = ThreadPoolExecutor(MAX_WAITING, "trackside-hangs")
        # By key, the alert, and what is set if no verdict is wanted any more.
        self._firing: dict[object, tuple[Alert, threading.Event]] = {}

    def stop(self) -> None:
        """End; alerts that wait get no verdict."""
        self._stopping.set()
        for _, unwanted in list(self._firing.values()):
            unwanted.set()
        self._threads.shutdown(cancel_futures=True)

    def accept(self, batch: Batch) -> None:
        """Queue the alerts of a batch about runs that hang, if they have begun or got worse."""
        for alert in batch.records:
            if not (isinstance(alert, Alert) and alert.alert in ALERTS and alert.run):
                continue
            change = self._escalation.of(alert)
            # With its end, or with another try in its place, the present try is not wanted any more.
            if (change or alert.ended is not None) and (before := self._firing.pop(alert.key, None)) is not None:
                before[1].set()
            # The pipeline, which stops later, must not wait here.
            if change and not self._stopping.is_set() and self._room.acquire(blocking=False):
                unwanted = threading.Event()
                self._firing[alert.key] = alert, unwanted
                self._threads.submit(self._handle, alert, self._hang(alert), unwanted)

    def judge_now(self, run: str) -> dict[str, Any] | None:
        """Return the verdict on a live run, by its id, that has made no step for much longer than usual; else None.

        The verdict is JSON, and also has the seconds since the last step, ``quiet_seconds``. Takes some seconds.
        """
        name, now = self._info(run).get("run", ""), time.time()
        durations, states = self._state.values(time.monotonic(), f.STEP_DURATION, f.RANK_STATE)
        pushed = self._pushed(name)
        last = max(pushed.values(), default=now)
        lives = any(of == name and value == 1.0 and state not in ENDED for (of, _, state), value in states.items())
        if not lives or not is_quiet(now - last, usual_step(durations, name)):
            return None
        found = self._judge(_Hang(run, name, pushed))
        return found and {**found._asdict(), "quiet_seconds": round(now - last, 1)}

    def _handle(self, alert: Alert, hang: _Hang, unwanted: threading.Event) -> None:
        is_judged = False
        try:
            for pause in (0.0, *self._retries):
                if unwanted.wait(pause):
                    return
                found = self._judge(hang)
                # An alert that has got worse since is judged again, but this verdict holds until then; not for another hang.
                now = self._firing.get(alert.key)
                if found is None or now is None or self._stopping.is_set():
                    continue
                if last_occurrence(now[0]) != last_occurrence(alert):
                    continue
                # A rank that computed, or was stopped, at the first look may hang later.
                is_busy = not set(found.busy) <= set(found.waiting)
                if not (is_judged and is_busy):
                    is_judged, evidence = True, {CONCLUSION: found.text, "hang": found._asdict()}
                    note = AlertNote(alert.alert, alert.started, alert.run, alert.labels, evidence)
                    self._publish(Batch("hangs", records=[note]))
                    self._keep(alert, found)
                if not is_busy:
                    return
        except Exception:  # a verdict that fails must not cost the next
            log.exception("no verdict on %s of run %s", alert.alert, alert.run)
        finally:
            self._room.release()

    def _keep(self, alert: Alert, found: HangVerdict) -> None:
        """Keep the flight recorders as a capture."""
        now, key = time.monotonic(), (alert.run, alert.alert)
        self._captured = {one: at for one, at in self._captured.items() if now - at < AGAIN_SECONDS}
        ranks = tuple(sorted({int(rank) for rank in found.places} | set(found.waiting)))
        if key in self._captured or not ranks:
            return
        self._captured[key] = now
        attempt = int(self._info(alert.run).get("attempt", 0))
        cause = AlertLink(alert.alert, alert.started, dict(alert.labels))
        try:
            self._capture(CaptureRequest(alert.run, attempt, "flight_recorder", "alert", ranks, cause=cause))
        except CaptureError as error:
            log.info("the flight recorders of run %s are not kept: %s", alert.run, error)

    def _judge(self, hang: _Hang) -> HangVerdict | None:
        """Ask all ranks, and those that answer once more; return None if they make progress, or no rank is known."""
        began, before = time.monotonic(), self._spent(hang.run)
        asked, answers = self._ask("flight?", hang.run)
        bodies: dict[int, Flight] = {answer.rank: answer.body for answer in answers}
        first = {rank: rank_dump(body) for rank, body in bodies.items()}
        uses_nccl = any(group.backend == "nccl" for body in bodies.values() for group in body.groups)
        view = ras_view(self._users(hang.run)) if uses_nccl else None
        # While the first question waits for ranks that are silent, the time between the two answers of the others passes.
        answered = began + max((answer.seconds for answer in answers), default=0.0)
        self._stopping.wait(max(0.0, answered + self._apart - time.monotonic()))
        _, answers = self._ask("flight?", hang.run, frozenset(first))
        dumps = {answer.rank: rank_dump(answer.body) for answer in answers}
        moved = {rank for rank, dump in dumps.items() if dump.progress() != first[rank].progress()}
        if hang.pushed is not None:
            dumps = first | dumps
            moved |= {rank for rank, at in self._pushed(hang.name).items() if hang.pushed.get(rank, at) != at}
            if hang.subject in moved if hang.subject is not None else moved:
                return None
        busy = {rank for rank, spent in self._spent(hang.run).items() if spent - before.get(rank, spent) >= BUSY}
        dumps = {rank: dump._replace(busy=rank in busy) for rank, dump in dumps.items()}
        found = verdict(dumps, self._absent(hang, asked, dumps), hang.subject)
        if hang.pushed is None and not (found and set(found.waiting) - moved):
            return None  # nobody waits for the rank that has ended
        if found is not None:
            gpus = self._on_gpus(hang.name) & dumps.keys() if found.kind not in DEADLOCKS else ()
            paused = {one.rank for one in self._ranks(hang.run) if one.state in PAUSED}
            pids = {str(one.rank): one.pid for one in self._ranks(hang.run)[:PLACES]}
            found = found._replace(busy=tuple(sorted({*found.busy, *gpus, *paused})), pids=pids)
        return found if found is None or view is None else compared(found, view)

    def _absent(self, hang: _Hang, asked: frozenset[int], dumps: Mapping[int, RankDump]) -> Absent:
        states, steps = self._state.values(time.monotonic(), f.RANK_STATE, f.STEP)
        known = {
            int(rank): state
            for (name, rank, state), value in states.items()
            if name == hang.name and value == 1.0 and int(rank) not in dumps
        }
        ended = frozenset(rank for rank, state in known.items() if state in ENDED)
        size = int(self._info(hang.run).get("world_size", 0))
        silent = (asked | known.keys()) - dumps.keys() - ended  # those that have been silent for long are not asked
        unseen = frozenset(range(min(size, MAX_UNSEEN_RANKS))) - dumps.keys() - silent - ended
        reasons = {
            process.rank: f"{NO_ANSWER}: {_STATES[process.state].format(pid=process.pid)}"
            for process in self._ranks(hang.run)
            if process.rank in silent and process.state in _STATES
        }
        for rank in ended:
            at = f", at step {number(steps[hang.name, str(rank)])}" if (hang.name, str(rank)) in steps else ""
            has, cause = "has " if known[rank] == "finished" else "", hang.causes.get(rank, "")
            how = how_ended(known[rank], cause) if cause or known[rank] != "failed" else "has failed"
            reasons[rank] = f"{has}{how}{at}"
        return Absent(ended, silent, unseen, reasons)

    def _spent(self, run: str) -> dict[int, float]:
        """Return the CPU seconds of the main thread of each rank of a run, as far as this daemon sees them."""
        stats = ((one.rank, read_stat(f"/proc/{one.pid}/task", one.pid)) for one in self._ranks(run))
        ticks = os.sysconf("SC_CLK_TCK")
        return {rank: (stat.user + stat.system) / ticks for rank, stat in stats if stat is not None}

    def _on_gpus(self, name: str) -> set[int]:
        """Return the ranks of a run, by its name, whose GPU computes: the CPU may sleep until a kernel of minutes ends."""
        infos, used = self._state.values(time.monotonic(), RANK_INFO, UTILIZATION)
        gpus = {gpu for (gpu, *_), value in used.items() if isinstance(value, float) and value >= GPU_SHARE}
        return {int(rank) for gpu, _, run, rank in infos if run == name and gpu in gpus and rank.isdecimal()}

    def _ranks(self, run: str) -> list[TrainingProcess]:
        """Return the processes of a run's ranks as of the last tick."""
        return [one for one in self._processes() if one.role == "rank" and one.run_id == run]

    def _users(self, run: str) -> set[int]:
        """Return the users who run the ranks of a run, as far as this daemon sees them."""
        found = map(ProcessStatuses(Path("/proc")).get, (one.pid for one in self._ranks(run)))
        return {one.uid for one in found if one is not None}

    def _info(self, run: str) -> dict[str, str]:
        """Return the labels of a live run, by its id."""
        (infos,) = self._state.values(time.monotonic(), f.RUN_INFO)
        found = (dict(zip(f.RUN_INFO.labels, labels, strict=True)) for labels in infos)
        return next((info for info in found if info["run_id"] == run), {})

    def _pushed(self, name: str) -> dict[int, float]:
        """Return when each rank of a run, by its name, last pushed a step, in Unix seconds of its own clock."""
        (pushes,) = self._state.values(time.monotonic(), f.LAST_STEP)
        return {int(rank): at for (of, rank), at in pushes.items() if of == name and isinstance(at, float)}

    def _hang(self, alert: Alert) -> _Hang:
        name = alert.labels.get("run", "")
        # Of an alert that has returned, the label names the rank that it began with.
        rank = int(next(iter(alert.evidence.get("ranks", ())), alert.labels.get("rank", 0)))
        subject = rank if alert.alert == "RankSilent" else None
        causes = {} if alert.alert in STALLS else {rank: str(alert.evidence.get("cause", ""))}
        return _Hang(alert.run, name, self._pushed(name) if alert.alert in STALLS else None, subject, causes)
