"""Python stacks of the ranks that delay a run, and of one that does not, for comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside_daemon.model.families import training as f

if TYPE_CHECKING:
    from trackside_daemon.alerts.evidence.sources import Case

RANKS = 8
# Most characters of all stacks; each rank has its share. Threads beyond it are omitted, and of a longer main thread the
# outermost calls.
CHARACTERS_OF_ALL = 48_000

CHARACTERS = 300  # most characters of a frame; paths are rarely that long
_CLIENT = "trackside"  # prefix of the names of the client's threads


def stacks(case: Case) -> dict[str, Any]:
    """Return the threads of each rank that answers, each with its calls, the innermost last."""
    ranks = _chosen(case)
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


def _chosen(case: Case) -> list[int]:
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
    return [int(rank) for rank in dict.fromkeys([*behind[: RANKS - 1], *behind[-1:]])]


def _threads(rank: int, stacks_by_name: dict[str, list[str]], case: Case, room: int) -> list[dict[str, Any]]:
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
        frames = [call[-CHARACTERS:] for call in calls]
        while not kept and sum(map(len, frames)) > room:
            del frames[0]
        room -= len(name) + sum(map(len, frames))
        if room < 0 and kept:
            case.missing.append(f"stacks: {len(others) - len(kept)} more threads of rank {rank} are omitted")
            break
        kept.append({"name": name[:CHARACTERS], "frames": frames})
    return kept
