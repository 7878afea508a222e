"""Latest values of the ranks of an alert, and the latest samples of its key."""

from __future__ import annotations

from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

from trackside_daemon.history.read import reader, series
from trackside_daemon.model import training_families as f
from trackside_daemon.model.metric import Distribution, json_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trackside_daemon.alerts.evidence.sources import Case

    Family = Mapping[tuple[str, ...], float | Distribution]

RANKS = 64  # most ranks of an alert with their values
PHASES = 16  # most phases of a rank, with few ranks
PHASES_OF_MANY = 4
FEW = 8
SAMPLES = 20
NEWEST = 4096  # newest samples that are searched for those before the alert; a fast training has pushed more since
MOST_SERIES = 1000  # series of the rank among which the times of the steps are looked for
ROUNDING = 0.001  # tolerance of sample times, in seconds

# Key that is derived if it is not pushed, and then not stored: its samples come from the times of the steps.
DURATION = "step_duration_seconds"

_GAUGES = {
    "step": f.STEP,
    **{key: f.KNOWN[key] for key in ("loss", "grad_norm", "learning_rate")},
    "last_push": f.LAST_STEP,
}


def ranks(case: Case) -> dict[str, Any]:
    """Return of all ranks the state, step, loss, gradient norm, learning rate, alert's key, mean step and seconds by phase."""
    states, durations, phases, others, *gauges = case.sources.state.values(
        case.now, f.RANK_STATE, f.STEP_DURATION, f.PHASE_SECONDS, f.VALUE, *_GAUGES.values()
    )
    evidence: dict[str, Any] = {}
    chosen = _chosen(case, states)
    phases_of_each = PHASES if len(chosen) <= FEW else PHASES_OF_MANY
    for rank in chosen:
        labels_of_rank = (case.run, rank)
        values: dict[str, Any] = {}
        if state := next(
            (labels[2] for labels, value in states.items() if labels[:2] == labels_of_rank and value == 1.0), ""
        ):
            values["state"] = state
        for name, gauge in zip(_GAUGES, gauges, strict=True):
            values |= _number(name, gauge.get(labels_of_rank))
        key = case.alert.labels.get("key", "")
        values |= _number(key, others.get((*labels_of_rank, key)))
        values |= _number("step_seconds", _mean(durations.get(labels_of_rank)))
        if seconds := _by_phase(phases, labels_of_rank, phases_of_each):
            values["phase_seconds"] = seconds
        if values:
            evidence[rank] = values
    if not evidence:
        case.missing.append("ranks: /metrics no longer has values of them")
        return {}
    return {"ranks": evidence}


def samples(case: Case) -> dict[str, Any]:
    """Return the latest samples of the alert's key before it began: step, time and value, oldest first."""
    key, rank = case.alert.labels.get("key", ""), case.alert.labels.get("rank", "0")
    if not key or not case.alert.run or not rank.isdecimal():
        return {}
    with case.sources.history.reading() as connection:
        keys = None if key == DURATION else [key]
        stored = list(islice(reader.series(connection, case.alert.run, keys, [int(rank)]), MOST_SERIES))
        candidates = [entry for entry in stored if entry.series.key == key] or stored
        if not candidates:
            case.missing.append(f"samples: the history has none of {key}")
            return {}
        last = max(candidates, key=lambda entry: entry.attempt or 0)
        steps, times, values = series.last(connection, last.series, last.tail, NEWEST)
    all_rows = ((step, time / 1e6, value) for step, time, value in zip(steps, times, values, strict=True))
    rows = [row for row in all_rows if row[1] <= case.until + ROUNDING]
    # The key is derived, so its samples are computed from the times of another key.
    if last.series.key != key:
        rows = _durations(rows)
    points = [[step, time, json_number(value)] for step, time, value in rows[-SAMPLES:]]
    return {"samples": {"key": key, "rank": int(rank), "points": points}}


def _durations(rows: list[tuple[int, float, float]]) -> list[tuple[int, float, float]]:
    """Return the seconds from each step to the next, from the samples of another key."""
    return [
        (step, time, (after - time) / (later - step))
        for (step, time, _), (later, after, _) in pairwise(rows)
        if later > step
    ]


def _chosen(case: Case, states: Family) -> list[str]:
    """Return the ranks of the alert, then the other ranks of the run."""
    ranks_of_run = {labels[1] for labels in states if labels[0] == case.run}
    others = sorted(ranks_of_run, key=lambda rank: (len(rank), rank))
    return list(dict.fromkeys([*case.ranks(), *others]))[:RANKS]


def _by_phase(phases: Family, rank: tuple[str, str], most: int) -> dict[str, Any]:
    seconds = {labels[2]: value for labels, value in phases.items() if labels[:2] == rank and isinstance(value, float)}
    longest = sorted(seconds, key=lambda phase: seconds[phase], reverse=True)[:most]
    return {phase: json_number(seconds[phase]) for phase in longest if seconds[phase] > 0}


def _mean(value: float | Distribution | None) -> float | None:
    if not isinstance(value, Distribution) or not sum(value.counts):
        return None
    return value.sum / sum(value.counts)


def _number(name: str, value: float | Distribution | None) -> dict[str, Any]:
    return {name: json_number(value)} if name and isinstance(value, float) else {}
