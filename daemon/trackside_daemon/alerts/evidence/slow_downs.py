"""Find the likely causes of an alert about slowness, from the history, the newest values and the processes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from trackside_daemon.alerts.evidence.changes import changes
from trackside_daemon.alerts.evidence.neighbours import heaviest, read_processes
from trackside_daemon.causes.engine import FAMILIES, compared, conclusion, of_slow_down
from trackside_daemon.causes.level import BEFORE, SlowDown
from trackside_daemon.causes.readings import RankPlace, Readings
from trackside_daemon.history.read.resources import Resource, Resources
from trackside_daemon.history.read.series import Window
from trackside_daemon.model.families import gpu
from trackside_daemon.model.families import process as process_families
from trackside_daemon.model.families import training as f

if TYPE_CHECKING:
    from trackside_daemon.alerts.evidence.sources import Case
    from trackside_daemon.model.records import Alert

APART = 1.2  # seconds between two readings of the processes, in which a tick reads the machine again
POINTS = 400  # most points of a series
# Newest samples of the log that are read, those of half an hour by default: with `storage.interval` of 1 s the usual level
# comes from a few minutes, but the search stays short.
NEWEST = 2048
PHASES = 32  # most phases of ranks that are evidence
WINDOW = 300.0  # seconds over which GpuUnderutilized and StragglerRank judge
STRAGGLER, UNDERUTILIZED = "StragglerRank", "GpuUnderutilized"


def causes(case: Case) -> dict[str, Any]:
    """Return the causes that can explain a slow-down, the likeliest first, and what to conclude from them."""
    slow = slow_down(case.alert, case.until)
    if slow is None:
        case.missing.append("causes: the alert does not have the usual duration of a step")
        return {}
    before = read_processes(case.sources.proc)
    case.sources.pause(APART)
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


def slow_down(alert: Alert, until: float) -> SlowDown | None:
    """Return the slow-down that an alert reports; None if the alert does not say how much is lost."""
    value, usual, since = (_number(alert.evidence.get(name)) for name in ("value", "usual", "since"))
    if alert.alert == UNDERUTILIZED and value is not None and value < 1:
        return SlowDown(until - WINDOW, until, 1 - value, lasting=True)
    if not value or usual is None or value <= usual:
        return None
    began = until - WINDOW if since is None else since
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
    return sorted(found, key=lambda one: (one["rank"], -one["now_ratio"]))[:PHASES]


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _machine(case: Case, slow: SlowDown) -> list[Resource]:
    """Return the machine's series, whose last point is the value now."""
    window = Window("time", slow.began - BEFORE, slow.ended + APART)
    with case.sources.history.reading() as connection:
        resources = Resources(connection, window, POINTS, NEWEST)
        stored = [one for family in FAMILIES for one in resources.of(family)]
    points = {(one.family, frozenset(one.labels.items())): list(one.points) for one in stored}
    now = case.wall + APART
    for family, (metric, values) in case.sources.state.named(case.now, set(FAMILIES)).items():
        for labels, value in values.items():
            # An empty label is not stored either.
            key = family, frozenset(zip(metric.labels, labels, strict=True))
            if isinstance(value, float):
                points.setdefault(key, []).append((now, value))
    return [Resource(family, dict(labels), values) for (family, labels), values in points.items()]


def _run(case: Case) -> str:
    """Return the name of the alert's run, or of the one that trains on its GPU."""
    if case.run or "gpu" not in case.alert.labels:
        return case.run
    (infos,) = case.sources.state.values(case.now, gpu.RANK_INFO)
    return next((labels[2] for labels in infos if labels[0] == case.alert.labels["gpu"]), "")


def _places(case: Case) -> list[RankPlace]:
    """Return where the ranks of the run are on this machine; for an alert about a GPU, those on it."""
    run = _run(case)
    infos, states = case.sources.state.values(case.now, gpu.RANK_INFO, f.RANK_STATE)
    pids = {str(one.rank): str(one.pid) for one in case.sources.processes() if one.run == run and one.role == "rank"}
    ranks = dict.fromkeys([*pids, *(labels[1] for labels in states if labels[0] == run)])
    gpus = {rank: frozenset(labels[0] for labels in infos if labels[2:] == (run, rank)) for rank in ranks}
    only = case.alert.labels.get("gpu")
    return [RankPlace(rank, pids.get(rank, ""), gpus[rank]) for rank in ranks if only is None or only in gpus[rank]]


def _processes(case: Case) -> tuple[frozenset[str], dict[str, str]]:
    """Return the pids of all trainings' processes, and the names of those on GPUs."""
    pid, comm, run = (process_families.PROCESS_INFO.labels.index(name) for name in ("pid", "comm", "run"))
    (infos,) = case.sources.state.values(case.now, process_families.PROCESS_INFO)
    own = _run(case)
    of_run = {labels[pid] for labels in infos if labels[run] == own}
    of_run |= {str(process.pid) for process in case.sources.processes() if process.run == own}
    return frozenset(of_run), {labels[pid]: labels[comm] for labels in infos}
