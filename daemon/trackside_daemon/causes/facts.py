"""Read what a diagnosis needs from the history: the times of the ranks, the alerts, captures, and the machine's series."""

import sqlite3
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from trackside_daemon.history.capture_rows import captures
from trackside_daemon.history.clock_moves import ClockMove, clock_moves
from trackside_daemon.history.read import alert_reader, reader
from trackside_daemon.history.read.attempts import push_times
from trackside_daemon.history.read.resources import Resource, Resources, machine_stream
from trackside_daemon.history.read.series import LogTails, Window
from trackside_daemon.history.time_accounting import rank_times
from trackside_daemon.model.capture import Capture
from trackside_daemon.model.families import cgroup, gpu, process
from trackside_daemon.model.metric import Metric
from trackside_daemon.model.records import CALM, CRITICAL
from trackside_daemon.model.stall import ENOUGH_STEPS, USUAL
from trackside_daemon.model.time_ledger import RankSpan

POINTS = 300  # most points of a series; a diagnosis reads as many as a chart, whatever the length of the run
LASTING = 600.0  # seconds of an attempt from which its failure is not one of a new script
LAST_TICK = 2.0  # seconds after the end of a run in which the last sample of its machine comes

HOT = frozenset(("hw_slowdown", "hw_thermal", "hw_power_brake", "sw_thermal"))  # limits that are a fault, not a setting
_UNREAD = ('domain="memory"', 'domain="video"', 'domain="graphics"', 'mode="idle"', 'mode="iowait"', 'mode="steal"')


class Reliability(NamedTuple):
    """Failures of attempts: of this run, and of others that had lasted, since a script that fails at once has a bug."""

    failures: int  # their number
    seconds: float  # the time of all attempts, with those that did not fail


class LongSteps(NamedTuple):
    """The long steps among those that were read of an attempt."""

    long: int  # their number
    steps: int  # number of all steps that were read
    seconds: float  # seconds of a long one, on average
    usual: float  # seconds of the median step
    share: float  # the share of the time that long steps took beyond the median one
    longest: float = 0.0  # seconds that the longest one took beyond it
    period: str = ""  # every how many steps or seconds they come, as words; empty without a period


class Facts(NamedTuple):
    """A run with its ranks, alerts and resources."""

    run: Mapping[str, Any]  # the run, without metrics
    spans: Sequence[RankSpan]  # its ranks by attempt
    alerts: Sequence[Mapping[str, Any]]  # its alerts, oldest first
    resources: Resources  # series of the machine, which are read when they are needed
    ended: float  # the run's end, or now, in Unix seconds
    events: Sequence[Mapping[str, Any]] = ()  # its newest events, oldest first
    profile: Capture | None = None  # its newest profile that is summarised; None without one
    reliability: Reliability = Reliability(0, 0.0)  # failures in this history
    resumes: Sequence[Mapping[str, Any]] = ()  # the verdicts on its resumes, oldest first
    long: Mapping[int, LongSteps] = {}  # the long steps of each attempt that has some

    @property
    def wall(self) -> float:
        """The wall time in seconds."""
        return max(0.0, self.ended - float(self.run["started"]))

    @property
    def pauses(self) -> list[tuple[float, float]]:
        """Begin and end of each time between two attempts, in Unix seconds."""
        between = pairwise(self.run.get("attempt_list", ()))
        return [(one["ended"] + LAST_TICK, later["started"]) for one, later in between if one["ended"] is not None]

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return max(1, len({span.rank for span in self.spans}))

    @property
    def api(self) -> str:
        """The path of the run in the API."""
        return f"/api/v1/runs/{self.run['id']}"

    def of(self, family: Metric, **labels: str) -> list[Resource]:
        """Return the series of a family that have samples and these labels."""
        return self.resources.of(family.name, lambda own: labels.items() <= own.items())

    def gpu_ranks(self) -> dict[str, set[int]]:
        """Return the ranks of the run on each GPU, by its UUID; empty if no rank was seen on one."""
        ranks: dict[str, set[int]] = {}
        # The series keep the name that the run had.
        names = {info.labels.get("run") for info in self.of(process.PROCESS_INFO, run_id=self.run["id"])}
        for info in self.of(gpu.RANK_INFO):
            if info.labels["run"] not in names | {self.run["name"]}:
                continue
            ranks.setdefault(info.labels["uuid"], set()).add(int(info.labels["rank"]))
        return ranks

    def processes(self) -> dict[str, int]:
        """Return the ranks of the run by pid, with the processes that they started."""
        infos = self.of(process.PROCESS_INFO, run_id=self.run["id"])
        return {info.labels["pid"]: int(info.labels["rank"]) for info in infos}

    def gpus(self, family: Metric, domain: str | None = None, *, nonzero: bool = False) -> list[Resource]:
        """Return the series of the run's GPUs, of one clock or all: of GPUs with a rank.

        They are those of all GPUs if no process of the run was seen, which could be on one.
        """
        used = self.gpu_ranks()
        is_any = not used and not self.processes()

        def wanted(labels: Mapping[str, str]) -> bool:
            return domain in {None, labels.get("domain")} and (is_any or labels.get("uuid") in used)

        return self.resources.of(family.name, wanted, nonzero=nonzero)

    def cgroups(self, family: Metric, **labels: str) -> list[Resource]:
        """Return the series of the cgroups of the run's processes, or of all if they are unknown."""
        paths = {info.labels.get("cgroup") for info in self.of(process.PROCESS_INFO, run_id=self.run["id"])}
        return [one for one in self.of(family, **labels) if not paths or one.labels.get("cgroup") in paths]

    def stalled(self, resource: str, family: Metric) -> tuple[float, Metric]:
        """Return the seconds in which all tasks waited for a resource, and the series: those of the run's cgroup, if known."""
        own = self.cgroups(cgroup.STALLED, resource=resource)
        return _most(own or self.of(family)), cgroup.STALLED if own else family

    def most_of_processes(self, family: Metric) -> float:
        """Return the increase of a counter of the run's process in which it increased most."""
        own = self.processes()
        return _most([counter for counter in self.of(family) if counter.labels.get("pid") in own])


def _most(counters: Sequence[Resource]) -> float:
    return max((counter.increase for counter in counters), default=0.0)


def read_facts(connection: sqlite3.Connection, uid: str, tails: LogTails) -> Facts:
    """Return all facts about a run, by its id; see `read_times`."""
    profiles = [one for one in captures(connection, uid) if one.kind == "profile" and one.summary.get("ranks")]
    return read_times(connection, uid, tails)._replace(
        events=reader.events(connection, uid),
        profile=profiles[-1] if profiles else None,
        reliability=_reliability(connection, uid),
        resumes=_resumes(connection, uid),
    )


def read_times(
    connection: sqlite3.Connection, uid: str, tails: LogTails, run: Mapping[str, Any] | None = None
) -> Facts:
    """Return the facts about a run, by its id, that say where its time went.

    Args:
        connection: In a transaction.
        uid: The run's id.
        tails: Logs of streams.
        run: The run, if it was read already.

    Raises:
        UnknownRunError: There is no run with this id.
        ValueError: A block is damaged.
    """
    run = run or reader.head(connection, uid)
    ended = time.time() if run["ended"] is None else float(run["ended"])
    window = Window("time", float(run["started"]), ended + LAST_TICK)
    return Facts(
        run,
        _spans(connection, run, ended, tails),
        _alerts(connection, uid),
        Resources(connection, window, POINTS, only=is_read, stream=machine_stream(connection, uid)),
        ended,
    )


def _alerts(connection: sqlite3.Connection, uid: str) -> list[dict[str, Any]]:
    """Return the alerts of a run, oldest first, with severity and end of the trouble itself, and with `CALM`."""
    found = alert_reader.alerts(connection, alert_reader.AlertFilter(uid, evidence=False))
    fields = ", ".join(f"json_extract(alert.evidence, '$.{name}')" for name in (CRITICAL, "recovered", CALM))
    rows = connection.execute(
        f"SELECT alert.id, {fields} FROM alert JOIN run ON run.id = alert.run WHERE run.uid = ?",  # noqa: S608
        (uid,),
    )
    evidence = {id_: (critical, number_of(recovered), number_of(calm)) for id_, critical, recovered, calm in rows}
    for one in found:
        critical, recovered, calm = evidence[one["id"]]
        one["severity"] = CRITICAL if critical == 1 else one["severity"]  # whomever it notifies
        one["ended"] = one["ended"] if recovered is None else recovered  # though it fires for a while
        one[CALM] = calm or 0.0
    return found


def number_of(stored: object) -> float | None:
    """Return a number of an alert's evidence; None if it has none, or an imported run something else."""
    return float(stored) if isinstance(stored, int | float) else None


def is_read(series: str) -> bool:
    """Return whether a diagnosis reads a series of these families, by its name with labels."""
    if series.startswith(gpu.CLOCK_LIMIT_ACTIVE.name):
        return any(f'reason="{reason}"' in series for reason in HOT)
    return not any(label in series for label in _UNREAD)


def _resumes(connection: sqlite3.Connection, uid: str) -> Sequence[Mapping[str, Any]]:
    (row,) = connection.execute("SELECT id FROM run WHERE uid = ?", (uid,)).fetchone()
    return reader.resumes(connection, row)


def _reliability(connection: sqlite3.Connection, uid: str) -> Reliability:
    """Return the failures of the attempts in the history."""
    failures, seconds = connection.execute(
        "SELECT total(attempt.state IN ('failed', 'lost')), total(attempt.ended - attempt.started) FROM attempt "
        "JOIN run ON run.id = attempt.run WHERE attempt.ended IS NOT NULL AND NOT run.deleted "
        "AND (run.uid = ? OR attempt.ended - attempt.started > ?)",
        (uid, LASTING),
    ).fetchone()
    return Reliability(int(failures), seconds)


def _spans(connection: sqlite3.Connection, run: Mapping[str, Any], ended: float, tails: LogTails) -> list[RankSpan]:
    (row,) = connection.execute("SELECT id FROM run WHERE uid = ?", (run["id"],)).fetchone()
    attempts = {attempt["attempt"]: attempt for attempt in run["attempt_list"]}
    pushes = _pushes(connection, row, tails)
    spans = []
    for times in rank_times(connection, row):
        attempt = attempts[times.attempt]
        until = ended if attempt["ended"] is None else attempt["ended"]
        first, last = pushes[times.attempt, times.rank]
        began = attempt["started"]
        spans.append(
            RankSpan(
                *(times.attempt, times.rank, began, until, first, last, times.phases, times.account, times.host),
                before=times.before,
                after=times.after,
                lives=attempt["ended"] is None and run["ended"] is None,
                usual=USUAL if times.step_seconds is None or times.steps[1] < ENOUGH_STEPS else times.step_seconds,
                steps=times.steps[1],
            )
        )
    return spans


def _pushes(
    connection: sqlite3.Connection, run: int, tails: LogTails
) -> dict[tuple[int, int], tuple[float | None, float | None]]:
    """Return the Unix times of first and last push by attempt and rank."""
    times: dict[tuple[int, int], tuple[float | None, float | None]] = {}
    moves: dict[int, list[ClockMove]] = {}
    for stream, attempt, rank in connection.execute("SELECT id, attempt, rank FROM stream WHERE run = ?", (run,)):
        if attempt not in moves:
            moves[attempt] = clock_moves(connection, run, attempt)
        times[attempt, rank] = push_times(connection, stream, tails[stream], moves[attempt]) or (None, None)
    return times
