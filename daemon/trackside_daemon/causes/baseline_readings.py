"""Readings of a run whose usual levels are those of its baseline, as if the baseline had ended when the run began."""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence

from trackside_daemon.causes.facts import Facts
from trackside_daemon.causes.readings import BEFORE, RankPlace, Readings, SlowDown
from trackside_daemon.history.read.resources import Resource, Resources, machine_stream
from trackside_daemon.history.read.series import Window
from trackside_daemon.model.families import gpu, process, training

POINTS = 300  # most points of a series
RAMP = 6  # points of the seconds of a phase, of which only the sum is stored


def baseline_readings(
    connection: sqlite3.Connection, facts: Facts, usual: Facts, lost: float, families: Sequence[str]
) -> Readings:
    """Return the readings of a run against its baseline.

    Args:
        connection: In a transaction.
        facts: The run.
        usual: The baseline.
        lost: Share of the run's time that it lost against the baseline, above 0 and below 1.
        families: The families to read.

    Raises:
        ValueError: A block is damaged.
    """
    now, before = _places(facts), _places(usual)
    same: dict[tuple[str, str], str] = {}
    for rank in now.keys() & before.keys():
        same["pid", before[rank].pid] = now[rank].pid
        same |= {("gpu", old): new for old, new in zip(sorted(before[rank].gpus), sorted(now[rank].gpus), strict=False)}
    began = _begin(facts)
    shift = began - usual.ended
    earlier = {
        (one.family, frozenset((label, same.get((label, text), text)) for label, text in _lasting(one.labels))): [
            (moment + shift, value) for moment, value in one.points
        ]
        for one in [*_machine(connection, usual, families), *_phases(usual)]
    }
    resources = [
        _joined(earlier.get((one.family, frozenset(_lasting(one.labels))), []), one)
        for one in [*_machine(connection, facts, families), *_phases(facts)]
    ]
    own = facts.processes()
    return Readings(SlowDown(began, facts.ended, lost), resources, list(now.values()), pids=frozenset(own))


def _lasting(labels: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the labels that another run of this training has as well."""
    return ((name, text) for name, text in labels.items() if name not in {"run", "run_id", "uuid"})


def _places(facts: Facts) -> dict[str, RankPlace]:
    """Return where the ranks of a run were, by rank."""
    infos = facts.of(process.PROCESS_INFO, run_id=facts.run["id"], role="rank")
    pids = {info.labels["rank"]: info.labels["pid"] for info in infos}
    gpus: dict[str, set[str]] = {}
    for info in facts.of(gpu.RANK_INFO, run=facts.run["name"]):
        gpus.setdefault(info.labels["rank"], set()).add(info.labels["gpu"])
    ranks = sorted({str(span.rank) for span in facts.spans})
    return {rank: RankPlace(rank, pids.get(rank, ""), frozenset(gpus.get(rank, ()))) for rank in ranks}


def _begin(facts: Facts) -> float:
    """Return the begin of the part that is compared: the last half hour of the last attempt, which has no start-up."""
    return max(facts.ended - BEFORE, *(span.first or span.started for span in facts.spans), float(facts.run["started"]))


def _machine(connection: sqlite3.Connection, facts: Facts, families: Sequence[str]) -> list[Resource]:
    """Return the series of the run's machine in the part that is compared."""
    window = Window("time", _begin(facts), facts.ended)
    resources = Resources(connection, window, POINTS, stream=machine_stream(connection, facts.run["id"]))
    return [one for family in families for one in resources.of(family)]


def _phases(facts: Facts) -> Iterator[Resource]:
    """Yield the seconds of each phase of the ranks in the last attempt, spread evenly over the part that is compared."""
    last = max((span.attempt for span in facts.spans), default=0)
    begin = _begin(facts)
    for span in facts.spans:
        wall, length = span.ended - span.started, span.ended - begin
        for phase, seconds in span.phases.items() if span.attempt == last and min(wall, length) > 0 else ():
            points = [(begin + length * at / RAMP, seconds / wall * length * at / RAMP) for at in range(RAMP + 1)]
            labels = {"run": facts.run["name"], "rank": str(span.rank), "phase": phase}
            yield Resource(training.PHASE_SECONDS.name, labels, points)


def _joined(before: list[tuple[float, float]], now: Resource) -> Resource:
    """Return a series of the run with the points of the baseline before it; a counter falls between them, as at a reset."""
    counts = before and now.family.endswith("_total")
    above = max(0.0, now.points[0][1] - before[-1][1] + 1) if counts else 0.0
    return now._replace(points=[*((moment, value + above) for moment, value in before), *now.points])
