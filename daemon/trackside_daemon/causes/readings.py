"""Readings of the machine before and during a slow-down: usual levels, those during it, and whom they are about."""

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

from trackside_daemon.causes.facts import Facts
from trackside_daemon.history.read.resources import Resource, Resources, machine_stream
from trackside_daemon.history.read.series import Window
from trackside_daemon.model.families import gpu, process, training
from trackside_daemon.model.metric import Metric
from trackside_daemon.model.robust import middle_and_spread
from trackside_daemon.model.text import percent, shown

Points = Sequence[tuple[float, float]]


BEFORE = 1800.0  # seconds before a slow-down that give the usual level
ENOUGH = 4  # fewest values that have a usual level
STEADY = 4  # values of a slow-down that count as independent at most: neighbouring ones are alike
SCALES = 4.0  # robust deviations beyond which a level has moved
# Distance from the usual level, as a multiple of that of the highest tenth, that chance does not reach: for few values of a
# slow-down, and for `STEADY` ones.
MARGINS = 2.5, 1.5


class SlowDown(NamedTuple):
    """Time in which a training was slower than usual."""

    began: float  # Unix time of its beginning
    ended: float  # Unix time of its end, or now
    lost: float  # share of that time that was lost, above 0 and up to 1
    lasting: bool = False  # it may be as old as the run, so that waits count from 0 and not from their usual level

    def can_explain(self, usual: float, now: float) -> float:
        """Return the share of the lost time, 0 to 1, that a wait explains, given as shares of the time."""
        # The usual waits of the steps in this time are not lost: those steps would have had them too.
        waited = min(1.0, now) - usual * (1 - self.lost)
        return min(1.0, max(0.0, waited / self.lost))


class Level(NamedTuple):
    """Level of a reading; of a counter, its increase per second."""

    usual: float  # median before, or of other ranks
    spread: float  # robust standard deviation of a mean of as many values as the slow-down has
    high: float  # level that chance does not reach, since few of the usual values come near it
    now: float  # level now, over at least one interval between two samples
    stretch: float = 1.0  # that interval divided by the duration of the slow-down, if it is longer

    @property
    def during(self) -> float:
        """Level during the slow-down alone, if all of the change belongs to it."""
        return self.usual + (self.now - self.usual) * self.stretch

    def rose(self, least: float) -> bool:
        """Return whether the level is above its usual one by more than *least* and by more than chance explains."""
        return self.now - self.usual > max(least, SCALES * self.spread, self.high - self.usual)

    def fell(self, ratio: float) -> bool:
        """Return whether the level has fallen to less than *ratio* of its usual one, by more than chance explains."""
        return self.now < ratio * self.usual and self.usual - self.now > SCALES * self.spread


def gauge_level(points: Points, slow: SlowDown) -> Level | None:
    """Return the level of a gauge; None if its usual level or its present one is unknown."""
    before = [value for time, value in points if slow.began - BEFORE <= time < slow.began]
    during = [value for time, value in points if slow.began <= time <= slow.ended]
    after = [value for time, value in points if time > slow.ended][:1]
    return level(before, median(during or after), len(during)) if during or after else None


def counter_level(points: Points, slow: SlowDown) -> Level | None:
    """Return the level of a counter, see `gauge_level`; an interval in which it was reset counts as unknown."""
    spans = [
        (began, ended, after - before)
        for (began, before), (ended, after) in pairwise(points)
        if ended > began and after >= before
    ]
    before = [
        grown / (ended - began) for began, ended, grown in spans if slow.began - BEFORE <= began and ended <= slow.began
    ]
    during = [span for span in spans if span[1] > slow.began and span[0] < slow.ended]
    seconds = sum(ended - began for began, ended, _ in during)
    if not seconds:
        return None
    usual = [0.0] * ENOUGH if slow.lasting else before
    known = level(usual, sum(grown for *_, grown in during) / seconds, len(during))
    duration = max(slow.ended - slow.began, 1e-3)
    return known and known._replace(stretch=max(1.0, seconds / duration))


def level(usual: Sequence[float], now: float, count: int = 1) -> Level | None:
    """Return the level *now* of *count* values compared with *usual* ones; None if those are fewer than `ENOUGH`."""
    if len(usual) < ENOUGH:
        return None
    middle, spread = middle_and_spread(usual)
    spread /= min(max(count, 1), STEADY) ** 0.5
    tenth = sorted(usual)[len(usual) * 9 // 10]
    return Level(middle, spread, middle + MARGINS[count >= STEADY] * (tenth - middle), now)


LEAST_WAIT = 0.05  # share of the time by which a wait must rise
EXPLAINS = 0.2  # share of the time that a slow-down lost that a cause must be able to explain
UNKNOWN = 0.5  # place, among the shares, of a cause whose share is unknown
SYMPTOM = 0.5  # weight of the share of a symptom: what causes it says more
NAMED = 2  # most processes that a cause names


class Rise(NamedTuple):
    """A cause that was found in a slow-down, because it is more than usual."""

    cause: str  # its name, in snake case
    text: str  # what has changed, with its numbers, as the beginning of a sentence
    share: float | None  # share of the lost time that it can explain at most, 0 to 1; None if unknown
    level: Level | None = None  # its reading
    symptom: bool = False  # it shows where the time is lost, but not why

    @property
    def weight(self) -> float:
        """Place among other causes: the highest is the likeliest."""
        share = UNKNOWN if self.share is None else self.share
        # Shares are upper limits, so that small differences between them mean nothing.
        return round(share * (SYMPTOM if self.symptom else 1.0), 1)

    @property
    def counts(self) -> bool:
        """True if it explains enough to be named."""
        return self.share is None or self.share >= EXPLAINS

    def as_json(self) -> dict[str, Any]:
        """Return the cause as evidence of an alert."""
        known = {} if self.level is None else {"usual": self.level.usual, "now": self.level.during}
        share = {} if self.share is None else {"explains_ratio": round(self.share, 3)}
        return {"cause": self.cause, "text": self.text, **share, **known}


class RankPlace(NamedTuple):
    """A rank with its process on this machine, and its GPUs by number."""

    rank: str
    pid: str = ""
    gpus: frozenset[str] = frozenset()


class Neighbour(NamedTuple):
    """Process outside of the training."""

    pid: int
    command: str
    cpus: float  # number of CPUs that it uses now
    io: float = 0.0  # bytes per second that it reads from storage and writes to it; 0 if unknown
    resident: float = 0.0  # its memory in RAM, in bytes
    age: float = 1e9  # seconds since its start

    def as_json(self) -> dict[str, Any]:
        """Return the process as evidence of an alert."""
        return {
            "pid": self.pid,
            "command": self.command,
            "cpus": round(self.cpus, 2),
            "io_bytes_per_second": round(self.io),
            "resident_bytes": self.resident,
            "age_seconds": round(self.age, 1),
        }


class SeriesLevel(NamedTuple):
    """Level of one series."""

    labels: Mapping[str, str]
    level: Level


class Readings(NamedTuple):
    """All that the search for causes reads."""

    slow: SlowDown  # the slow-down
    # Series of the machine and of the ranks' phases, with points before and during the slow-down.
    resources: Sequence[Resource]
    ranks: Sequence[RankPlace] = ()  # the ranks that may have caused it
    # Other ranks of the run, whose levels are the usual ones; none to compare with the time before.
    peers: Sequence[RankPlace] = ()
    pids: frozenset[str] = frozenset()  # all processes of the training
    commands: Mapping[str, str] = {}  # names of the processes by pid
    neighbours: Sequence[Neighbour] = ()  # processes outside of the training that use most of the machine

    def of(self, family: Metric, **labels: str) -> list[SeriesLevel]:
        """Return the levels of a family's series that have these labels and are about the machine or one of the ranks."""
        wanted = [one for one in self.series(family, **labels) if _is_about(one.labels, self.ranks)]
        found = [SeriesLevel(one.labels, level) for one in wanted if (level := self._level(one)) is not None]
        subjects = {"gpu", "pid", "rank"} & {name for one in wanted for name in one.labels}
        others = [one for one in self.series(family, **labels) if _is_about(one.labels, self.peers)]
        if not (self.peers and subjects):
            return found
        usual: dict[str, list[float]] = {}
        for one in others:
            if (level := self._level(one)) is not None:
                usual.setdefault(one.labels.get("phase", ""), []).append(level.now)
        of_peers = ((labels, level, usual.get(labels.get("phase", ""), [])) for labels, level in found)
        return [
            SeriesLevel(labels, compared) for labels, level, peers in of_peers if (compared := _compared(level, peers))
        ]

    def series(self, family: Metric, **labels: str) -> list[Resource]:
        """Return the series of a family that have these labels."""
        return [one for one in self.resources if one.family == family.name and labels.items() <= one.labels.items()]

    def share(self, level: Level) -> float:
        """Return the share of the lost time, 0 to 1, that a wait explains."""
        return self.slow.can_explain(level.usual, level.during)

    def rise(
        self, cause: str, what: str, level: Level, form: Callable[[float], str] = percent, *, more: str = ""
    ) -> Rise:
        """Return a cause whose level is a share of the time, such as ``the wait for data rose from 5 % to 20 %``."""
        usual, now = form(level.usual), form(level.during)
        if self.peers:
            text = f"{what} is {now}, while that of other ranks is {usual}"
        elif self.slow.lasting:
            text = f"{what} is {now}"
        else:
            text = f"{what} {'rose' if level.now > level.usual else 'fell'} from {usual} to {now}"
        return Rise(cause, text + more, self.share(level), level)

    def longer(self, cause: str, what: str, family: Metric, *, more: str = "", **labels: str) -> Iterator[Rise]:
        """Yield the waits of a family that have risen by more than chance; *what* may name labels, as ``{rank}``."""
        for found, level in self.of(family, **labels):
            if level.rose(LEAST_WAIT):
                yield self.rise(cause, what.format_map(found), level, more=more)

    def slower(self, cause: str, what: str, level: Level, form: Callable[[float], str], *, more: str = "") -> Rise:
        """Return a cause whose level is a speed, which has fallen."""
        left = level.now / level.usual
        return self.rise(cause, what, level, form, more=more)._replace(share=min(1.0, (1 - left) / self.slow.lost))

    def _level(self, one: Resource) -> Level | None:
        return (counter_level if one.family.endswith("_total") else gauge_level)(one.points, self.slow)


def named(
    neighbours: Sequence[Neighbour], use: Callable[[Neighbour], float], least: float, form: Callable[[float], str]
) -> str:
    """Return the processes that use most of something, at *least* so much, with their use; empty without any."""
    most = sorted((one for one in neighbours if use(one) >= least), key=lambda one: -use(one))[:NAMED]
    return ", ".join(f"{shown(one.command)} (pid {one.pid}, {form(use(one))})" for one in most)


def _is_about(labels: Mapping[str, str], ranks: Sequence[RankPlace]) -> bool:
    """Return whether labels name one of these ranks, its process or its GPU, or none of them."""
    if "pid" in labels:
        return labels["pid"] in {rank.pid for rank in ranks}
    if "rank" in labels:
        return labels["rank"] in {rank.rank for rank in ranks}
    return "gpu" not in labels or any(labels["gpu"] in rank.gpus for rank in ranks)


def _compared(level: Level, others: Sequence[float]) -> Level | None:
    """Return a level whose usual one is the median of other ranks; None without any."""
    if not others:
        return None
    middle = median(others)
    return Level(middle, median(abs(value - middle) for value in others), max(others), level.now, level.stretch)


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
