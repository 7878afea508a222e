"""Put the diagnosis of a run together."""

from __future__ import annotations

from array import array
from itertools import pairwise
from math import isfinite, sqrt
from statistics import fmean, linear_regression, quantiles
from typing import TYPE_CHECKING, Any

from trackside.distributions import p_value, t_quantile
from trackside.totals.phases import SAVES
from trackside_daemon.causes import engine
from trackside_daemon.causes.cause import LISTED_SHARE, as_json
from trackside_daemon.causes.facts import read_facts
from trackside_daemon.causes.quantities import QUANTITIES, curves
from trackside_daemon.causes.suggestions import suggestions
from trackside_daemon.causes.verdict import verdict
from trackside_daemon.diagnosis.accounts import divide
from trackside_daemon.diagnosis.comparison import read_comparison
from trackside_daemon.diagnosis.costs import costs, energy, total_joules
from trackside_daemon.diagnosis.estimates import LARGEST, thinning
from trackside_daemon.diagnosis.measures import read_measures, with_usage
from trackside_daemon.history.clock_moves import moved, moves_of_stream
from trackside_daemon.history.read import reader
from trackside_daemon.history.read.charts import chart
from trackside_daemon.history.read.series import LOSSES, LogTails, Window
from trackside_daemon.model.families import cgroup, gpu, host
from trackside_daemon.model.time_ledger import ACCOUNTS, SYNC_PHASES

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from trackside_daemon.causes.facts import Facts
    from trackside_daemon.causes.quantities import Quantity
    from trackside_daemon.diagnosis.settings import CostSection
    from trackside_daemon.history.clock_moves import ClockMove
    from trackside_daemon.history.read.resources import Resource


POINTS = 300  # most samples of a key that are read
LAST = 0.1  # part of the steps of the later trend
LEAST = 8  # fewer samples show no trend
STEP_TIME = "step_time"


def resources(facts: Facts) -> list[dict[str, Any]]:
    """Return a row for each quantity of each resource, and one for all resources of a kind together.

    Returns:
        ``quantity``, ``unit``; ``of``: the GPU, the pid or the cgroup, empty for the host and for all together; ``ranks``
        that use it; ``mean``, ``std``, ``min``, ``max``, ``p50``, ``p95``. Values between the samples of the history are
        in the extremes of a long run alone.
    """
    return [row for quantity in QUANTITIES for row in _rows(facts, quantity)]


def _rows(facts: Facts, quantity: Quantity) -> Iterator[dict[str, Any]]:
    each = list(curves(facts, quantity))
    for _, name, series, values in each:
        one = series if len(series) == 1 and not quantity.is_rate else []
        yield _row(quantity, name, _ranks(facts, quantity, series[0], name), list(values.values()), one)
    if len(each) > 1:
        every = [value for curve in each for value in curve.values.values()]
        gauges = [] if quantity.is_rate else [series for curve in each for series in curve.series]
        yield _row(quantity, "", sorted({rank for span in facts.spans for rank in [span.rank]}), every, gauges)


def _ranks(facts: Facts, quantity: Quantity, series: Resource, name: str) -> list[int]:
    if quantity.of == "gpu":
        return sorted(facts.gpu_ranks().get(series.labels.get("uuid", ""), ()))
    if quantity.of == "pid":
        return [facts.processes()[name]]
    return [int(name)] if quantity.of == "rank" else []


def _row(
    quantity: Quantity, of: str, ranks: Sequence[int], values: Sequence[float], series: Sequence[Resource]
) -> dict[str, Any]:
    lows = [one.low for one in series if one.low is not None]
    highs = [one.high for one in series if one.high is not None]
    mean = fmean(values)
    parts = quantiles(values, n=20, method="inclusive") if len(values) > 1 else [values[0]] * 19
    return {
        "quantity": quantity.name,
        "unit": quantity.unit,
        "of": of,
        "ranks": list(ranks),
        "mean": mean,
        "std": sqrt(max(0.0, fmean(value * value for value in values) - mean * mean)),
        "min": min(*values, *lows, values[0]),
        "max": max(*values, *highs, values[0]),
        "p50": parts[9],
        "p95": parts[18],
    }


def diagnose(
    connection: sqlite3.Connection,
    uid: str,
    prices: CostSection,
    *,
    baseline: Collection[str] = (),
    keys: Collection[str] = (),
) -> dict[str, Any]:
    """Return the diagnosis of a run, by its id, as JSON.

    Args:
        connection: In a transaction.
        uid: The run's id.
        prices: The configured prices.
        baseline: Runs or tags to compare with; empty for the run's own baseline.
        keys: Keys whose trend and comparison to add.

    Returns:
        ``run``, ``name``, ``wall_seconds``, ``ranks``; ``health``: ``ok``, ``slow`` or ``broken``; ``verdict``: what stops it, in
        one sentence, or empty; ``hang``: the verdict on the ranks of a run that hangs now, else None; ``resumes``: those on its resumes;
        ``restarted_since``: seconds since the first end that `trackside run` answered by a restart, else None; ``ledger``: wall seconds by account, means over the ranks, which sum to the wall time;
        ``accounts``: the words of each; ``ledger_by_rank``: those of each rank;
        ``causes``: what stops the run first, then the costliest, those without measured seconds last; ``listed`` are those of 5 % of the time or a minute; ``unknown``: what is not measured, and why;
        ``energy`` and ``costs``; ``resources``; ``suggestions``; ``trends``; ``comparison`` with the baseline.

    Raises:
        UnknownRunError: There is no run with this id, or a baseline is unknown.
        ValueError: A block is damaged.
    """
    tails = LogTails(connection)
    facts, accounts = divide(read_facts(connection, uid, tails), connection, tails)
    joules = energy(facts)
    measures = read_measures(connection, uid, tails)
    cost = costs(facts, joules, accounts.whole, measures, prices)
    whole = total_joules(joules)
    measures = with_usage(measures, facts, whole, cost["cost"])
    noise = measures.noise * facts.wall
    stops = verdict(facts, connection)
    found = engine.of_run(facts, accounts, connection, tails, stops)
    causes = sorted(
        (as_json(one, facts, noise, cost["gpu_hour"], whole) for one in found),
        key=lambda one: (stops.place(one["cause"]), -(one["gpu_hours"] or 0.0)),
    )
    for one in causes:
        one["listed"] |= one["cause"].startswith(stops.causes)
    slow = any((one["lost_seconds"] or 0.0) >= LISTED_SHARE * facts.wall > 0 for one in causes)
    rows = resources(facts)
    return {
        "run": uid,
        "name": facts.run["name"],
        "wall_seconds": facts.wall,
        "ranks": facts.ranks,
        "health": "broken" if stops.broken else "slow" if stops.text or slow else "ok",
        "verdict": stops.text,
        "hang": stops.hang,
        "resumes": [dict(resume) for resume in facts.resumes],
        "restarted_since": next((facts.ended - one["ended"] for one in facts.resumes if "ended" in one), None),
        "ledger": accounts.whole,
        "accounts": {account: ACCOUNTS[account] for account in accounts.whole},
        "ledger_by_rank": {str(rank): entries for rank, entries in accounts.by_rank.items()},
        "causes": causes,
        "unknown": [{"what": what, "why": why} for what, why in unknown(facts, joules)],
        "energy": joules,
        "costs": cost,
        "resources": rows,
        "suggestions": [as_json(one, facts, noise, None, None) for one in suggestions(facts, rows, accounts.whole)],
        "trends": trends(connection, uid, keys, tails),
        "comparison": read_comparison(
            connection, [uid], list(baseline), keys, prices, known={uid: measures}, tails=tails
        ),
    }


def unknown(facts: Facts, joules: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what is unknown, each with the reason and how to measure it."""
    phases = {phase for span in facts.spans for phase in span.phases}
    gpus = bool(facts.of(gpu.UTILIZATION))
    if "data" not in phases:
        yield "data wait", "no phase `data`: wrap the loader in run.data(loader), or use run.watch or an integration"
    if facts.ranks > 1 and phases.isdisjoint({"forward", *SYNC_PHASES}):
        yield "wait for the slowest rank", "the ranks report no phases: use run.watch(model), or trackside run --auto"
    if phases.isdisjoint(SAVES):
        saved = sum(event["kind"] == "checkpoint" for event in facts.events)
        what = "what checkpoints cost" if saved else "checkpoints"
        yield what, 'no phase `checkpoint`: save within run.phase("checkpoint")'
    if gpus and not any(span.busy is not None for span in facts.spans):
        yield "what GPUs hide", "no rank was seen on a GPU, so that waits count in full"
    if not gpus:
        yield "GPUs", "no GPU was read in the time of the run"
    if facts.profile is None:
        live = facts.run["ended"] is None
        way = f": trackside capture {facts.run['name']}" if live else "; only a run that trains can be recorded"
        yield "waits within steps", f"no profile{way}"
    if not facts.of(host.MEMORY_STALLED) and not facts.of(cgroup.STALLED):
        yield "memory and storage pressure", "the kernel has no /proc/pressure"
    missing = [gpu for gpu, value in joules["gpus"].items() if value is None]
    if missing:
        yield "energy", f"no counter on GPU {', '.join(missing)}"
    elif joules["gpu_joules"] is None and joules["cpu_joules"] is None:
        yield "energy", "no counter of a GPU or a CPU"


def trends(
    connection: sqlite3.Connection, uid: str, keys: Collection[str] = (), tails: LogTails | None = None
) -> list[dict[str, Any]]:
    """Return the trends of keys of the lowest rank in the last attempt that has them: of the loss, the step time and *keys*.

    Returns:
        ``key``; ``slope``: its change per 1,000 steps, with ``low`` and ``high``, its 95 % interval; ``r_squared``: the share
        of its variance that the line explains; ``p``: how likely such a slope is without a trend; ``start`` and ``end`` of the
        line, and its ``steps``. ``late``: the same of the last tenth of the steps, None if it has too few samples.
    """
    found, late = {}, {}
    for series in reader.series(connection, uid, [*LOSSES, *keys], tails=tails):
        points = chart(connection, series.series, series.tail, points=POINTS).points
        values = [(point[0], point[4]) for point in points if isfinite(point[4])]
        found[series.series.key] = values
        if values:
            last = Window("step", values[-1][0] - LAST * (values[-1][0] - values[0][0]))
            points_of_it = chart(connection, series.series, series.tail, last, POINTS).points
            ends = [(point[0], point[4]) for point in points_of_it if isfinite(point[4])]
            late[series.series.key] = trend(*zip(*ends, strict=True)) if len(ends) >= LEAST else {}
        if series.series.key in LOSSES or STEP_TIME not in found:
            found[STEP_TIME] = list(_step_times(points, moves_of_stream(connection, series.series.stream)))
    lines = {key: trend(*zip(*values, strict=True)) for key, values in found.items() if len(values) >= LEAST}
    return [{"key": key, **line, "late": late.get(key) or None} for key, line in lines.items() if line]


def trend(steps: Sequence[float], values: Sequence[float]) -> dict[str, Any]:
    """Return the trend of values; empty if the steps do not differ, or a value is above `LARGEST`."""
    if len(values) < LEAST or min(steps) == max(steps) or max(map(abs, values)) > LARGEST:
        return {}
    slope, intercept = linear_regression(steps, values)
    rest = [value - intercept - slope * step for step, value in zip(steps, values, strict=True)]
    mean, middle = fmean(values), fmean(steps)
    unexplained, whole = sum(one * one for one in rest), sum((value - mean) ** 2 for value in values)
    # Values that depend on their predecessors count less: see `estimates`.
    freedom = max(1.0, len(values) * thinning(rest) - 2)
    error = sqrt(unexplained / freedom / sum((step - middle) ** 2 for step in steps))
    half = t_quantile(0.975, freedom) * error
    return {
        "slope": 1000 * slope,
        "low": 1000 * (slope - half),
        "high": 1000 * (slope + half),
        "r_squared": 1 - unexplained / whole if whole else 0.0,
        "p": p_value(slope / error, freedom) if error else 0.0 if slope else 1.0,
        "start": intercept + slope * min(steps),
        "end": intercept + slope * max(steps),
        "steps": max(steps) - min(steps),
    }


def _step_times(points: Sequence[Sequence[float]], moves: Sequence[ClockMove]) -> Iterator[tuple[float, float]]:
    """Yield the seconds per step until each point."""
    steps = [int(point[0]) for point in points]
    times = moved(moves, steps, array("q", [round(point[1] * 1e6) for point in points]))
    for (step, began), (next_step, ended) in pairwise(zip(steps, times, strict=True)):
        if next_step > step:
            yield next_step, (ended - began) / 1e6 / (next_step - step)
