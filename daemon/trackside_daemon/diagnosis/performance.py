"""Read how fast a run was over time: its steps, tokens, phases, the own time and wait of each rank, and its collectives."""

import sqlite3
import time
from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from statistics import median
from typing import Any, NamedTuple

from trackside_daemon.detectors.collectives import Operation
from trackside_daemon.diagnosis.measures import step_durations
from trackside_daemon.history.read import reader
from trackside_daemon.history.read.attempts import read_axes
from trackside_daemon.history.read.resources import Resource, Resources, machine_stream
from trackside_daemon.history.read.series import LogTails, Window
from trackside_daemon.history.time_accounting import rank_times
from trackside_daemon.history.training_counters import FAMILIES, MOST_RANKS
from trackside_daemon.model.families import foreign, gpu
from trackside_daemon.model.families import training as f
from trackside_daemon.model.records import Account
from trackside_daemon.model.time_ledger import RankSpan, own_times, waits

EVER = Window("time")
POINTS = 120  # parts of the time
BEFORE = 8  # parts that a rank's own past has at least
BLOCKS = 32  # evenly spaced blocks of steps that are read of an attempt
NOW = 0.1  # share of the time that is now, of collectives
MOST = 50  # rows of collectives
ENOUGH = 0.8  # share of the usual bandwidth from which collectives have no order
LATE = 10.0  # seconds after the end in which the last counters come

_Parts = list[float | None]


class _Grid(NamedTuple):
    """Equal parts of the time of a run, in Unix seconds."""

    began: float
    width: float
    parts: int

    def edges(self) -> list[float]:
        return [self.began + number * self.width for number in range(self.parts + 1)]


def read_performance(
    connection: sqlite3.Connection, uid: str, tails: LogTails, points: int = POINTS, window: Window = EVER
) -> dict[str, Any]:
    """Return the performance of a run, by its id, in at most *points* equal parts of its time or of a window, as JSON.

    Returns:
        ``times``: the end of each part, in Unix seconds; lists with a value of each part, null where it is unknown:
        ``step``: ``p50`` and ``p99`` of the seconds per step of the lowest rank, ``tokens_per_second`` and
        ``samples_per_second`` over all ranks, ``mfu``, and by phase ``phases``, seconds per step as means over the ranks;
        ``ranks``: for each its ``rank``, and lists ``own`` (seconds per step in which it waits for no other rank), ``wait``, and
        ``ratio``: ``own`` over that of the median rank, unknown where most ranks made no step; ``past``: ``own`` over the median
        of the rank's own parts before, unknown before there are `BEFORE` of them. ``collectives``: see `read_collectives`.

    Raises:
        UnknownRunError: There is no run with this id.
        ValueError: A block is damaged.
    """
    run = reader.head(connection, uid)
    ended = time.time() if run["ended"] is None else float(run["ended"])
    began = max(float(run["started"]), window.low)
    ended = max(min(ended, window.high), began + 1e-3)
    grid = _Grid(began, (ended - began) / points, points)
    reach = Window("time", began - LATE, ended + LATE)
    resources = Resources(connection, reach, 4 * POINTS, stream=machine_stream(connection, uid))
    counters = _counters(resources, run, reach)
    steps = _by_rank(counters, f.STEPS.name, grid)
    phases = _by_phase(counters, grid)
    return {
        "run": uid,
        "times": grid.edges()[1:],
        "step": _step_quantiles(connection, uid, tails, grid),
        "tokens_per_second": _rate(_by_rank(counters, f.TOKENS.name, grid), grid.width),
        "samples_per_second": _rate(_by_rank(counters, f.SAMPLES.name, grid), grid.width),
        "mfu": _mfu(connection, uid, _by_rank(counters, f.MODEL_FLOPS.name, grid), grid),
        "phases": _phases(phases, steps),
        "ranks": _ranks(phases, grid, steps),
        "most_ranks": MOST_RANKS,
        "collectives": read_collectives(resources, run["name"], began, ended),
    }


def _counters(resources: Resources, run: Mapping[str, Any], window: Window) -> list[Resource]:
    """Return the counters of a run, each with its begin at 0: what came before the first record is spread evenly."""
    begin = (float(run["started"]), 0.0)

    def within(one: Resource) -> Resource:
        """Return a counter without the time before the run and after it, in which its last record may come."""
        points = [*one.points]
        if run["ended"] is not None and points[-1][0] > run["ended"]:
            last = float(run["ended"]), points[-1][1]
            points = [*(point for point in points if point[0] < run["ended"]), last]
        return one._replace(points=[begin, *points] if points[0][0] > begin[0] >= window.low else points)

    return [
        within(one)
        for metric in FAMILIES
        for one in resources.of(metric.name, lambda labels: labels.get("run") == run["name"])
    ]


def _by_rank(counters: Sequence[Resource], family: str, grid: _Grid) -> dict[int, _Parts]:
    """Return the increase of a counter in each part, by rank."""
    return {int(one.labels["rank"]): _increases(one, grid) for one in counters if one.family == family}


def _by_phase(counters: Sequence[Resource], grid: _Grid) -> dict[int, dict[str, _Parts]]:
    """Return the seconds of each phase in each part, by rank and phase."""
    found: dict[int, dict[str, _Parts]] = {}
    for one in counters:
        if one.family == f.PHASE_SECONDS.name:
            found.setdefault(int(one.labels["rank"]), {})[one.labels["phase"]] = _increases(one, grid)
    return found


def _increases(counter: Resource, grid: _Grid) -> _Parts:
    """Return the increase in each part; None where the counter is unknown at an end of the part."""
    times = [moment for moment, _ in counter.points]
    totals = [0.0]
    for (_, before), (_, after) in pairwise(counter.points):
        totals.append(totals[-1] + (after - before if after >= before else after))
    ends = [_interpolated(times, totals, edge) for edge in grid.edges()]
    return [None if low is None or high is None else high - low for low, high in pairwise(ends)]


def _interpolated(times: Sequence[float], values: Sequence[float], moment: float) -> float | None:
    place = bisect_right(times, moment)
    if place in (0, len(times)):
        return values[-1] if times and times[-1] == moment else None
    share = (moment - times[place - 1]) / (times[place] - times[place - 1])
    return values[place - 1] + share * (values[place] - values[place - 1])


def _rate(ranks: Mapping[int, _Parts], divisor: float) -> _Parts:
    """Return the sum over the ranks of each part, divided; None where no rank is known."""
    known = [[value for value in part if value is not None] for part in zip(*ranks.values(), strict=True)]
    return [sum(part) / divisor if part else None for part in known]


def _mfu(connection: sqlite3.Connection, uid: str, flops: Mapping[int, _Parts], grid: _Grid) -> _Parts:
    (row,) = connection.execute("SELECT id FROM run WHERE uid = ?", (uid,)).fetchone()
    peaks = {one.rank: one.account.peak for one in rank_times(connection, row) if one.account.peak}
    measured = {rank: parts for rank, parts in flops.items() if rank in peaks}
    return _rate(measured, grid.width * sum(peaks[rank] for rank in measured)) if measured else []


def _phases(phases: Mapping[int, Mapping[str, _Parts]], steps: Mapping[int, _Parts]) -> dict[str, _Parts]:
    """Return the seconds per step of each phase in each part, as means over the ranks, the longest phase first."""
    found = {}
    for name in sorted({name for of_rank in phases.values() for name in of_rank}):
        each = [
            _each_step(of_rank[name], steps[rank])
            for rank, of_rank in phases.items()
            if name in of_rank and rank in steps
        ]
        known = [[value for value in parts if value is not None] for parts in zip(*each, strict=True)]
        found[name] = [sum(part) / len(part) if part else None for part in known]
    return dict(sorted(found.items(), key=lambda item: -sum(value or 0.0 for value in item[1])))


def _each_step(seconds: _Parts, steps: _Parts) -> _Parts:
    return [None if part is None or not count else part / count for part, count in zip(seconds, steps, strict=True)]


def _ranks(
    phases: Mapping[int, Mapping[str, _Parts]], grid: _Grid, steps: Mapping[int, _Parts]
) -> list[dict[str, Any]]:
    """Return the own seconds, the wait and the ratio of each rank in each part; none without phases."""
    known = sorted(rank for rank in phases if rank in steps)
    own: dict[int, _Parts] = {rank: [None] * grid.parts for rank in known}
    wait: dict[int, _Parts] = {rank: [None] * grid.parts for rank in known}
    for part in range(grid.parts):
        present = [_span(grid, part, rank, phases[rank]) for rank in known if steps[rank][part]]
        if not present:
            continue
        times = own_times([span.in_steps for span in present])
        for span, seconds, waited in zip(present, times, waits(present), strict=True):
            count = steps[span.rank][part] or 1.0
            own[span.rank][part] = seconds / count
            wait[span.rank][part] = waited.get("communication", 0.0) / count
    usual = [_usual(part) for part in zip(*own.values(), strict=True)]
    return [
        {
            "rank": rank,
            "own": own[rank],
            "wait": wait[rank],
            "ratio": [_ratio(*pair) for pair in zip(own[rank], usual, strict=True)],
            "past": _against_past(own[rank]),
        }
        for rank in known
    ]


def _usual(part: Sequence[float | None]) -> float | None:
    """Return the own time of the median rank; None where few ranks made steps."""
    present = [value for value in part if value is not None]
    return median(present) if 2 * len(present) > len(part) else None


def _against_past(own: _Parts) -> _Parts:
    """Return each part's own time as a ratio of the median of those before it."""
    before: list[float] = []
    ratios: _Parts = []
    for value in own:
        ratios.append(_ratio(value, median(before)) if len(before) >= BEFORE else None)
        if value is not None:
            insort(before, value)
    return ratios


def _ratio(value: float | None, usual: float | None) -> float | None:
    return value / usual if value is not None and usual else None


def _span(grid: _Grid, part: int, rank: int, phases: Mapping[str, _Parts]) -> RankSpan:
    began, ended = grid.began + part * grid.width, grid.began + (part + 1) * grid.width
    seconds = {phase: value for phase, parts in phases.items() if (value := parts[part]) is not None}
    return RankSpan(0, rank, began, ended, began, ended, seconds, Account())


def _step_quantiles(connection: sqlite3.Connection, uid: str, tails: LogTails, grid: _Grid) -> dict[str, _Parts]:
    durations: list[list[float]] = [[] for _ in range(grid.parts)]
    for stream in reader.lowest_streams(connection, uid).values():
        for axis in read_axes(connection, stream, tails[stream], BLOCKS):
            for ended, seconds in step_durations(axis):
                part = int((ended - grid.began) / grid.width)
                if 0 <= part < grid.parts:
                    durations[part].append(seconds)
    ordered = [sorted(part) for part in durations]
    return {
        name: [part[min(len(part) - 1, int(share * len(part)))] if part else None for part in ordered]
        for name, share in (("p50", 0.5), ("p99", 0.99))
    }


def read_collectives(resources: Resources, run: str, began: float, ended: float) -> list[dict[str, Any]]:
    """Return a row for each operation and size of each communicator on the GPUs of a run, by its name, as JSON.

    ``bandwidth`` is that of the rank that waits least, which is the links', in GB/s; ``peers`` that of the other communicators with
    the same operation, size and number of ranks; ``waits_for`` the node and GPU of the rank for which the others wait. The links
    that lost most come first.
    """
    since = ended - NOW * (ended - began)
    its = resources.of(gpu.RANK_INFO.name, lambda labels: labels.get("run") == run)
    every = {_operation(one): one for name in foreign.BANDWIDTH for one in resources.of(name)}
    own = {
        one.communicator
        for one in every
        if not its or any(foreign.is_gpu(one.gpu, info.labels["gpu"], info.labels["uuid"]) for info in its)
    }
    now = {one: value for one, series in every.items() if one.communicator in own and (value := _last(series, since))}
    before = {one: [value for moment, value in every[one].points if moment < since] for one in now}
    usual = {one: median(values) for one, values in before.items() if values}
    micros = {_operation(one): _last(one, since) for name in foreign.EXEC_TIME for one in resources.of(name)}
    groups: dict[tuple[str, ...], list[Operation]] = {}
    for one in now:
        groups.setdefault((one.communicator, one.ranks, one.operation, one.size), []).append(one)
    links = {key: max(now[one] for one in members) for key, members in groups.items()}
    rows = []
    for key, members in groups.items():
        peers = [value for other, value in links.items() if other[1:] == key[1:] and other != key]
        seconds = [time / 1e6 for one in members if (time := micros.get(one))]
        row: dict[str, Any] = {
            **dict(zip(("communicator", "ranks", "operation", "size"), key, strict=True)),
            "bandwidth": links[key],
            "usual": max((usual[one] for one in members if one in usual), default=None),
            "peers": median(peers) if peers else None,
            "seconds": median(seconds) if seconds else None,
            "waits_for": _last_rank({one: now[one] for one in members}),
        }
        share = row["bandwidth"] / (row["usual"] or row["peers"] or row["bandwidth"])
        rows.append(((min(ENOUGH, share), not row["waits_for"]), row))
    return [row for _, row in sorted(rows, key=itemgetter(0))[:MOST]]


def _last_rank(now: Mapping[Operation, float]) -> str:
    """Return the node and GPU of the rank for which the others wait; empty if they do not."""
    one = max(now, key=now.__getitem__)
    others = [value for other, value in now.items() if other != one]
    return f"{one.host} {one.gpu}".strip() if others and 2 * median(others) < now[one] else ""


def _operation(series: Resource) -> Operation:
    return Operation(**foreign.operation(series.labels))


def _last(series: Resource, since: float) -> float | None:
    """Return the median of the values since a time; None without one."""
    values = [value for moment, value in series.points if moment >= since and value > 0]
    return median(values) if values else None
