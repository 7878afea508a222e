"""The last values of the ranks that an alert is about, and the last samples of its key."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from trackside_daemon.history.read import reader, series
from trackside_daemon.model.metric import Distribution, json_number
from trackside_daemon.training import families as f

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trackside_daemon.alerts.evidence.sources import Case

    Family = Mapping[tuple[str, ...], float | Distribution]

RANKS = 8
PHASES = 16
SAMPLES = 20
LOOKED_AT = 4096
"""The newest samples, among which those before the alert are found; a fast training has made more since."""

ROUNDING = 0.001
"""Seconds."""

DURATION = "step_duration_seconds"
"""Derived where it is not pushed, and then not kept: it is told by the times of the steps."""

_GAUGES = {
    "step": f.STEP,
    **{key: f.KNOWN[key] for key in ("loss", "grad_norm", "learning_rate")},
    "last_push": f.LAST_STEP,
}


def ranks(case: Case) -> dict[str, Any]:
    """By rank: state, step, loss, gradient norm, learning rate, its key, mean step duration, seconds by phase."""
    states, durations, phases, others, *gauges = case.sources.state.values(
        case.now, f.RANK_STATE, f.STEP_DURATION, f.PHASE_SECONDS, f.VALUE, *_GAUGES.values()
    )
    told: dict[str, Any] = {}
    for rank in _chosen(case, states):
        who = (case.run, rank)
        values: dict[str, Any] = {}
        if state := next((labels[2] for labels, value in states.items() if labels[:2] == who and value == 1.0), ""):
            values["state"] = state
        for name, found in zip(_GAUGES, gauges, strict=True):
            values |= _number(name, found.get(who))
        key = case.alert.labels.get("key", "")
        values |= _number(key, others.get((*who, key)))
        values |= _number("step_seconds", _mean(durations.get(who)))
        if spent := _by_phase(phases, who):
            values["phase_seconds"] = spent
        if values:
            told[rank] = values
    if not told:
        case.missing.append("ranks: nothing of them is on /metrics any more")
        return {}
    return {"ranks": told}


def samples(case: Case) -> dict[str, Any]:
    """The last samples of the alert's key: step, time and value each, oldest first."""
    key, rank = case.alert.labels.get("key", ""), case.alert.labels.get("rank", "0")
    if not key or not case.alert.run or not rank.isdecimal():
        return {}
    case.sources.written()
    with case.sources.history.reading() as connection:
        keys = None if key == DURATION else [key]
        found = reader.series(connection, case.alert.run, keys, [int(rank)])
        own = [one for one in found if one.series.key == key] or found
        if not own:
            case.missing.append(f"samples: the history has none of {key}")
            return {}
        last = max(own, key=lambda one: one.attempt or 0)
        steps, times, values = series.last(connection, last.series, last.tail, LOOKED_AT)
    every = ((step, time / 1e6, value) for step, time, value in zip(steps, times, values, strict=True))
    rows = [row for row in every if row[1] <= case.until + ROUNDING]
    if last.series.key != key:
        rows = _durations(rows)
    points = [[step, time, json_number(value)] for step, time, value in rows[-SAMPLES:]]
    return {"samples": {"key": key, "rank": int(rank), "points": points}}


def _durations(rows: list[tuple[int, float, float]]) -> list[tuple[int, float, float]]:
    """Seconds from each step to the next, of samples of another key."""
    return [
        (step, time, (after - time) / (later - step))
        for (step, time, _), (later, after, _) in pairwise(rows)
        if later > step
    ]


def _chosen(case: Case, states: Family) -> list[str]:
    """The ranks of the alert, else the lowest of the run."""
    if chosen := case.ranks():
        return chosen[:RANKS]
    every = {labels[1] for labels in states if labels[0] == case.run}
    return sorted(every, key=lambda rank: (len(rank), rank))[:1]


def _by_phase(phases: Family, who: tuple[str, str]) -> dict[str, Any]:
    spent = {labels[2]: value for labels, value in phases.items() if labels[:2] == who and isinstance(value, float)}
    longest = sorted(spent, key=lambda phase: spent[phase], reverse=True)[:PHASES]
    return {phase: json_number(spent[phase]) for phase in longest if spent[phase] > 0}


def _mean(found: float | Distribution | None) -> float | None:
    if not isinstance(found, Distribution) or not sum(found.counts):
        return None
    return found.sum / sum(found.counts)


def _number(name: str, value: float | Distribution | None) -> dict[str, Any]:
    return {name: json_number(value)} if name and isinstance(value, float) else {}
