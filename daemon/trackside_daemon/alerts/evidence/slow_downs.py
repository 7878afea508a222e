"""Find the likely causes of an alert about slowness, from the history, the newest values and the processes."""

import os
import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from trackside_daemon.alerts.active_alert import ADDITION
from trackside_daemon.alerts.evidence.sources import AlertCase
from trackside_daemon.causes.engine import FAMILIES, compared, conclusion, of_slow_down
from trackside_daemon.causes.facts import number_of
from trackside_daemon.causes.machine import users
from trackside_daemon.causes.readings import BEFORE, Neighbour, RankPlace, Readings, SlowDown
from trackside_daemon.collectors.kernel_files import number, read
from trackside_daemon.collectors.process.process_tree import ProcessKey, Stat, read_stat
from trackside_daemon.history.read import reader
from trackside_daemon.history.read.reader import UnknownRunError
from trackside_daemon.history.read.resources import Resource, Resources
from trackside_daemon.history.read.series import Window
from trackside_daemon.model.configuration import FACTS, flat
from trackside_daemon.model.families import gpu
from trackside_daemon.model.families import process as process_families
from trackside_daemon.model.families import training as f
from trackside_daemon.model.records import Alert
from trackside_daemon.model.text import duration

MAX_CHANGES = 16  # changes of one alert
MAX_RUNS = 20  # newest runs among which the one before is searched
MAX_VALUE_LENGTH = 60  # characters of a value
BEGAN_BEFORE = 60.0  # seconds before a slow-down in which the start of another run or process may have caused it
BEGAN_AFTER = 30.0  # the same after it

_FACTS = (*FACTS, "packages", "environ", "config", "hardware")  # what the start of an attempt chooses
HEAVIEST = 3  # processes that are returned of those that use most CPU time, storage and memory each
MAX_PROCESSES = 10_000  # most processes that are read, about 20 µs each
MIN_CPUS = 0.05
MIN_IO_RATE = 1e6  # bytes per second
MIN_RESIDENT_BYTES = 1e9  # bytes
KERNEL_THREAD = 0x00200000  # PF_KTHREAD of the kernel's <linux/sched.h>
READING_GAP_SECONDS = 1.2  # seconds between two readings of the processes, in which a tick reads the machine again
MAX_POINTS = 400  # most points of a series
# Newest samples of the log that are read, those of half an hour by default: with `storage.interval` of 1 s the usual level
# comes from a few minutes, but the search stays short.
NEWEST = 2048
MAX_PHASES = 32  # most phases of ranks that are evidence
WINDOW_SECONDS = 300.0  # seconds over which GpuUnderutilized and StragglerRank judge
STRAGGLER, UNDERUTILIZED = "StragglerRank", "GpuUnderutilized"


def changes(case: AlertCase, slow: SlowDown, run: str, neighbours: Sequence[Neighbour] = ()) -> list[str]:
    """Return, each in a line, the runs and processes that began with a slow-down, and how the run differs from before."""
    lines = [*_others(case, slow, run, neighbours), *_of_run(case, slow)]
    return lines[:MAX_CHANGES]


def _others(case: AlertCase, slow: SlowDown, run: str, neighbours: Sequence[Neighbour]) -> Iterator[str]:
    """Yield the other runs and the processes that began when the slow-down did, which is known to some steps."""
    (started,) = case.sources.state.values(case.now, f.STARTED)
    began: dict[str, float] = {}
    for (name, *_), at in started.items():
        if name != run and isinstance(at, float):
            began[f"run {name}"] = min(at, began.get(f"run {name}", at))
    began |= {f"process {one.pid} ({one.command})": case.wall - one.age for one in neighbours}
    for what, at in began.items():
        if slow.began - BEGAN_BEFORE <= at <= min(slow.began + BEGAN_AFTER, slow.ended):
            when = "before" if at < slow.began else "after"
            yield f"{what} began on this machine {duration(round(abs(slow.began - at)))} {when}"


def _of_run(case: AlertCase, slow: SlowDown) -> Iterator[str]:
    """Yield the differences from the attempt before, or from the run before of this name, if they are new."""
    attempts: list[dict[str, Any]] = []
    earlier = ""
    with suppress(UnknownRunError), case.sources.history.reading() as connection:
        attempts = reader.head(connection, case.alert.run)["attempt_list"][-2:]
        if len(attempts) == 1:
            earlier = _run_before(connection, case, attempts[0]["started"])
            attempts[:0] = reader.head(connection, earlier)["attempt_list"][-1:] if earlier else []
    if len(attempts) < 2 or not (slow.lasting or attempts[1]["started"] >= slow.began - BEFORE):
        return
    then = f"in run {earlier}" if earlier else f"before attempt {attempts[1]['attempt']}"
    before, now = (flat({name: attempt.get(name) for name in _FACTS}) for attempt in attempts)
    for name in dict.fromkeys([*before, *now]):
        if before.get(name) != now.get(name):
            yield f"{name}: {_short(before.get(name))} {then}, now {_short(now.get(name))}"


def _run_before(connection: sqlite3.Connection, case: AlertCase, started: float) -> str:
    """Return the id of the newest run of this name that began before; empty without any."""
    runs = reader.runs(connection, reader.RunFilter(case.run, until=started, limit=MAX_RUNS))
    return next((str(run["id"]) for run in runs if run["name"] == case.run and run["id"] != case.alert.run), "")


def _short(value: Any) -> str:
    return "none" if value is None else str(value)[:MAX_VALUE_LENGTH]


class Seen(NamedTuple):
    """All processes at one moment."""

    at: float  # seconds of the clock that also counts while the machine sleeps, like the start of processes
    stats: Mapping[ProcessKey, Stat]  # by process
    moved: Mapping[ProcessKey, int]  # bytes read from and written to storage so far, where the kernel shows them


def read_processes(proc: str) -> Seen:
    """Read the processes of the procfs at *proc*, without kernel threads."""
    with os.scandir(proc) as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdecimal()][:MAX_PROCESSES]
    found = [stat for pid in pids if (stat := read_stat(proc, pid)) is not None and not stat.flags & KERNEL_THREAD]
    moved = {stat.key: size for stat in found if (size := _moved(f"{proc}/{stat.pid}/io")) is not None}
    return Seen(time.clock_gettime(time.CLOCK_BOOTTIME), {stat.key: stat for stat in found}, moved)


def _moved(path: str) -> int | None:
    """Return read_bytes and write_bytes of proc_pid_io(5); None if they are not visible."""
    with suppress(OSError, ValueError):
        data = read(path)
        return (number(data, b"read_bytes: ", path) or 0) + (number(data, b"write_bytes: ", path) or 0)
    return None


def heaviest(before: Seen, after: Seen, own: Collection[int]) -> list[Neighbour]:
    """Return the processes except *own* that used most CPU time, storage or memory between two readings."""
    seconds, hertz, page = max(after.at - before.at, 1e-3), os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    every = [
        Neighbour(
            stat.pid,
            stat.comm,
            (stat.user + stat.system - began.user - began.system) / hertz / seconds,
            max(0, after.moved.get(key, 0) - before.moved.get(key, 0)) / seconds if key in before.moved else 0.0,
            stat.resident * page,
            after.at - stat.start / hertz,
        )
        for key, stat in after.stats.items()
        if stat.pid not in own and (began := before.stats.get(key)) is not None
    ]
    by_cpu = sorted((one for one in every if one.cpus >= MIN_CPUS), key=lambda one: -one.cpus)[:HEAVIEST]
    by_io = sorted((one for one in every if one.io >= MIN_IO_RATE), key=lambda one: -one.io)[:HEAVIEST]
    by_memory = sorted((one for one in every if one.resident >= MIN_RESIDENT_BYTES), key=lambda one: -one.resident)[
        :HEAVIEST
    ]
    return list(dict.fromkeys([*by_cpu, *by_io, *by_memory]))


def causes(case: AlertCase) -> dict[str, Any]:
    """Return the causes that can explain a slow-down, the likeliest first, and what to conclude from them."""
    slow = slow_down(case.alert, case.until)
    if slow is None:
        case.missing.append("causes: the alert does not have the usual duration of a step")
        return {}
    before = read_processes(case.sources.proc)
    case.sources.pause(READING_GAP_SECONDS)
    places = _places(case)
    named = case.alert.labels.get("rank") if case.alert.alert == STRAGGLER else None
    readings = Readings(
        slow,
        [*_machine(case, slow), *case.sources.phases(_run(case))],
        [place for place in places if named in {None, place.rank}],
        [place for place in places if named not in {None, place.rank}],
        *_processes(case),
    )
    own = {int(pid) for pid in readings.pids if pid.isdecimal()} | {os.getpid()}
    readings = readings._replace(neighbours=heaviest(before, read_processes(case.sources.proc), own))
    found = of_slow_down(readings)
    text = conclusion(found, compared(readings))
    if not text:
        case.missing.append("causes: the history has no earlier readings of this machine to compare with")
    parts = {
        "phases": _phases(readings),
        "neighbours": [one.as_json() for one in readings.neighbours],
        "changed": changes(case, slow, _run(case), readings.neighbours),
    }
    return {
        **({"causes": [cause.as_json() for cause in found], "conclusion": text} if text else {}),
        **{name: part for name, part in parts.items() if part},
    }


def neighbours(case: AlertCase) -> dict[str, Any]:
    """Return the processes outside of all trainings that use most of the machine, and a sentence with those that use its CPUs."""
    if "cgroup" in case.alert.labels:  # its own limit is reached, whatever the others use
        return {}
    before = read_processes(case.sources.proc)
    case.sources.pause(READING_GAP_SECONDS)
    own = {process.pid for process in case.sources.processes()} | {os.getpid()}
    if not (found := heaviest(before, read_processes(case.sources.proc), own)):
        return {}
    using = users(found)
    text = f"Outside of the training, processes use the CPUs{using}." if using else ""
    return {"neighbours": [one.as_json() for one in found], ADDITION: text}


def slow_down(alert: Alert, until: float) -> SlowDown | None:
    """Return the slow-down that an alert reports; None if the alert does not say how much is lost."""
    value, usual, since = (number_of(alert.evidence.get(name)) for name in ("value", "usual", "since"))
    if alert.alert == UNDERUTILIZED and value is not None and value < 1:
        return SlowDown(until - WINDOW_SECONDS, until, 1 - value, lasting=True)
    if not value or usual is None or value <= usual:
        return None
    began = until - WINDOW_SECONDS if since is None else since
    return SlowDown(min(began, until), until, 1 - usual / value)


def _phases(readings: Readings) -> list[dict[str, Any]]:
    """Return the share of the time that ranks spend in each phase: the usual one, and that during the slow-down."""
    found: list[dict[str, Any]] = [
        {
            "rank": int(labels["rank"]),
            "phase": labels["phase"],
            "usual_ratio": round(level.usual, 4),
            "now_ratio": round(level.during, 4),
        }
        for labels, level in readings.of(f.PHASE_SECONDS)
    ]
    return sorted(found, key=lambda one: (one["rank"], -one["now_ratio"]))[:MAX_PHASES]


def _machine(case: AlertCase, slow: SlowDown) -> list[Resource]:
    """Return the machine's series, whose last point is the value now."""
    window = Window("time", slow.began - BEFORE, slow.ended + READING_GAP_SECONDS)
    with case.sources.history.reading() as connection:
        resources = Resources(connection, window, MAX_POINTS, NEWEST)
        stored = [one for family in FAMILIES for one in resources.of(family)]
    points = {(one.family, frozenset(one.labels.items())): list(one.points) for one in stored}
    now = case.wall + READING_GAP_SECONDS
    for family, (metric, values) in case.sources.state.named(case.now, set(FAMILIES)).items():
        for labels, value in values.items():
            # An empty label is not stored either.
            key = family, frozenset(zip(metric.labels, labels, strict=True))
            if isinstance(value, float):
                points.setdefault(key, []).append((now, value))
    return [Resource(family, dict(labels), values) for (family, labels), values in points.items()]


def _run(case: AlertCase) -> str:
    """Return the name of the alert's run, or of the one that trains on its GPU."""
    if case.run or "gpu" not in case.alert.labels:
        return case.run
    (infos,) = case.sources.state.values(case.now, gpu.RANK_INFO)
    return next((labels[2] for labels in infos if labels[0] == case.alert.labels["gpu"]), "")


def _places(case: AlertCase) -> list[RankPlace]:
    """Return where the ranks of the run are on this machine; for an alert about a GPU, those on it."""
    run = _run(case)
    infos, states = case.sources.state.values(case.now, gpu.RANK_INFO, f.RANK_STATE)
    pids = {str(one.rank): str(one.pid) for one in case.sources.processes() if one.run == run and one.role == "rank"}
    ranks = dict.fromkeys([*pids, *(labels[1] for labels in states if labels[0] == run)])
    gpus = {rank: frozenset(labels[0] for labels in infos if labels[2:] == (run, rank)) for rank in ranks}
    only = case.alert.labels.get("gpu")
    return [RankPlace(rank, pids.get(rank, ""), gpus[rank]) for rank in ranks if only is None or only in gpus[rank]]


def _processes(case: AlertCase) -> tuple[frozenset[str], dict[str, str]]:
    """Return the pids of all trainings' processes, and the names of those on GPUs."""
    pid, comm, run = (process_families.PROCESS_INFO.labels.index(name) for name in ("pid", "comm", "run"))
    (infos,) = case.sources.state.values(case.now, process_families.PROCESS_INFO)
    own = _run(case)
    of_run = {labels[pid] for labels in infos if labels[run] == own}
    of_run |= {str(process.pid) for process in case.sources.processes() if process.run == own}
    return frozenset(of_run), {labels[pid]: labels[comm] for labels in infos}
