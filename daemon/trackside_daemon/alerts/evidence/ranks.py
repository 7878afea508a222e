"""The ranks of an alert: their latest values, the latest samples of its key, and their Python stacks."""

from itertools import islice, pairwise
from typing import Any

from trackside_daemon.alerts.evidence.sources import AlertCase, Family
from trackside_daemon.history.read import reader, series
from trackside_daemon.model.families import training as f
from trackside_daemon.model.metric import Distribution, json_number

STACKS = 8
# Most characters of all stacks; each rank has its share. Threads beyond it are omitted, and of a longer main thread the
# outermost calls.
CHARACTERS_OF_ALL = 48_000

MAX_FRAME_LENGTH = 300  # most characters of a frame; paths are rarely that long
_CLIENT = "trackside"  # prefix of the names of the client's threads
MAX_PHASES = 16  # most phases of a rank, with few ranks
PHASES_OF_MANY = 4
FEW = 8
SAMPLES = 20
NEWEST = 4096  # newest samples that are searched for those before the alert; a fast training has pushed more since
MAX_SERIES = 1000  # series of the rank among which the times of the steps are looked for
ROUNDING_SECONDS = 0.001  # tolerance of sample times, in seconds

# Key that is derived if it is not pushed, and then not stored: its samples come from the times of the steps.
DURATION = "step_duration_seconds"

_GAUGES = {
    "step": f.STEP,
    **{key: f.KNOWN[key] for key in ("loss", "grad_norm", "learning_rate")},
    "last_push": f.LAST_STEP,
}


def stacks(case: AlertCase) -> dict[str, Any]:
    """Return the threads of each rank that answers, each with its calls, the innermost last."""
    ranks = _delaying(case)
    if not case.alert.run or not ranks:
        case.missing.append("stacks: no rank of the run is on /metrics")
        return {}
    requested, answers = case.sources.request_stacks(case.alert.run, frozenset(ranks))
    room = CHARACTERS_OF_ALL // len(ranks)
    answered = {
        answer.rank: _threads(answer.rank, answer.body.threads, case, room)
        for answer in answers
        if answer.rank in ranks
    }
    for rank in ranks:
        if rank not in requested:
            case.missing.append(f"stacks: rank {rank} is not connected to this daemon now")
        elif rank not in answered:
            case.missing.append(
                f"stacks: rank {rank} did not answer within 3 s: it is stopped, or a call holds the GIL"
            )
    evidence = [{"rank": rank, "threads": answered[rank]} for rank in ranks if rank in answered]
    return {"stacks": evidence} if evidence else {}


def _delaying(case: AlertCase) -> list[int]:
    """Return the rank in the alert's labels, otherwise those furthest behind, and last the one furthest ahead."""
    steps, pushed = case.sources.state.values(case.now, f.STEP, f.LAST_STEP)
    states = case.sources.state.values(case.now, f.RANK_STATE)[0]
    living = [
        labels[1]
        for labels, value in states.items()
        if labels[0] == case.run and value == 1.0 and labels[2] in {"starting", "running", "stalled"}
    ]

    def progress(rank: str) -> tuple[float, float]:
        step, moment = (values.get((case.run, rank), -1.0) for values in (steps, pushed))
        return (step if isinstance(step, float) else -1.0, moment if isinstance(moment, float) else -1.0)

    behind = sorted((rank for rank in living if rank.isdecimal()), key=lambda rank: (progress(rank), int(rank)))
    labelled = [rank for rank in case.ranks()[:1] if rank in behind and "rank" in case.alert.labels]
    if labelled and len(behind) > 1:
        behind = [rank for rank in behind if rank not in labelled]
        return [int(labelled[0]), int(behind[-1])]
    return [int(rank) for rank in dict.fromkeys([*behind[: STACKS - 1], *behind[-1:]])]


def _threads(rank: int, stacks_by_name: dict[str, list[str]], case: AlertCase, room: int) -> list[dict[str, Any]]:
    """Return the threads of the training without those of the client, the main thread first.

    Args:
        rank: Their rank.
        stacks_by_name: Calls by thread.
        case: Receives what is omitted.
        room: Most characters.
    """
    named = [(name.rpartition(" ")[0] or name, calls) for name, calls in stacks_by_name.items()]
    others = [(name, calls) for name, calls in named if not name.startswith(_CLIENT)]
    # The main thread shows best what a rank is doing.
    others.sort(key=lambda thread: thread[0] != "MainThread")
    kept: list[dict[str, Any]] = []
    for name, calls in others:
        frames = [call[-MAX_FRAME_LENGTH:] for call in calls]
        while not kept and sum(map(len, frames)) > room:
            del frames[0]
        room -= len(name) + sum(map(len, frames))
        if room < 0 and kept:
            case.missing.append(f"stacks: {len(others) - len(kept)} more threads of rank {rank} are omitted")
            break
        kept.append({"name": name[:MAX_FRAME_LENGTH], "frames": frames})
    return kept


def ranks(case: AlertCase) -> dict[str, Any]:
    """Return of all ranks the state, step, loss, gradient norm, learning rate, alert's key, mean step and seconds by phase."""
    states, durations, phases, others, *gauges = case.sources.state.values(
        case.now, f.RANK_STATE, f.STEP_DURATION, f.PHASE_SECONDS, f.VALUE, *_GAUGES.values()
    )
    evidence: dict[str, Any] = {}
    chosen = case.shown_ranks(states)
    phases_of_each = MAX_PHASES if len(chosen) <= FEW else PHASES_OF_MANY
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


def samples(case: AlertCase) -> dict[str, Any]:
    """Return the latest samples of the alert's key before it began: step, time and value, oldest first."""
    key, rank = case.alert.labels.get("key", ""), case.alert.labels.get("rank", "0")
    if not key or not case.alert.run or not rank.isdecimal():
        return {}
    with case.sources.history.reading() as connection:
        keys = None if key == DURATION else [key]
        stored = list(islice(reader.series(connection, case.alert.run, keys, [int(rank)]), MAX_SERIES))
        candidates = [entry for entry in stored if entry.series.key == key] or stored
        if not candidates:
            case.missing.append(f"samples: the history has none of {key}")
            return {}
        last = max(candidates, key=lambda entry: entry.attempt or 0)
        steps, times, values = series.last(connection, last.series, last.tail, NEWEST)
    all_rows = ((step, time / 1e6, value) for step, time, value in zip(steps, times, values, strict=True))
    rows = [row for row in all_rows if row[1] <= case.until + ROUNDING_SECONDS]
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
