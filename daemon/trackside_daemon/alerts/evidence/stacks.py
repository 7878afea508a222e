"""Where the threads of the ranks are that hold a run up, from their own mouths, beside one that goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside_daemon.training import families as f

if TYPE_CHECKING:
    from trackside_daemon.alerts.evidence.sources import Case

RANKS = 8
FRAMES = 12
RANK_LETTERS = 5000
"""Of all threads of a rank; what of them is more is left out, the main thread never."""

LETTERS = 300
"""Of a call; paths are seldom so long."""

_OWN = "trackside"
"""How the names of the client's threads begin."""


def stacks(case: Case) -> dict[str, Any]:
    """Of each rank that answers its threads, each with its innermost calls, the innermost last."""
    wanted = _chosen(case)
    if not case.alert.run or not wanted:
        case.missing.append("stacks: no rank of the run is on /metrics")
        return {}
    asked, answers = case.sources.ask(case.alert.run, frozenset(wanted))
    answered = {one.rank: _threads(one.rank, one.body.threads, case) for one in answers if one.rank in wanted}
    for rank in wanted:
        if rank not in asked:
            case.missing.append(f"stacks: rank {rank} does not speak to this daemon now")
        elif rank not in answered:
            case.missing.append(f"stacks: rank {rank} has not answered in 3 s: it is stopped, or a call holds the GIL")
    told = [{"rank": rank, "threads": answered[rank]} for rank in wanted if rank in answered]
    return {"stacks": told} if told else {}


def _chosen(case: Case) -> list[int]:
    """The rank that it is about, those furthest behind, and last the one furthest ahead, to compare."""
    steps, pushed = case.sources.state.values(case.now, f.STEP, f.LAST_STEP)
    states = case.sources.state.values(case.now, f.RANK_STATE)[0]
    living = [
        labels[1]
        for labels, value in states.items()
        if labels[0] == case.run and value == 1.0 and labels[2] in {"starting", "running", "stalled"}
    ]

    def progress(rank: str) -> tuple[float, float]:
        step, moment = (found.get((case.run, rank), -1.0) for found in (steps, pushed))
        return (step if isinstance(step, float) else -1.0, moment if isinstance(moment, float) else -1.0)

    behind = sorted((rank for rank in living if rank.isdecimal()), key=lambda rank: (progress(rank), int(rank)))
    own = [rank for rank in case.ranks()[:1] if rank in behind and "rank" in case.alert.labels]
    if own and len(behind) > 1:
        behind = [rank for rank in behind if rank not in own]
        return [int(own[0]), int(behind[-1])]
    return [int(rank) for rank in dict.fromkeys([*behind[: RANKS - 1], *behind[-1:]])]


def _threads(rank: int, told: dict[str, list[str]], case: Case) -> list[dict[str, Any]]:
    """The threads of the training itself, the main thread first."""
    named = [(name.rpartition(" ")[0] or name, calls) for name, calls in told.items()]
    others = [(name, calls) for name, calls in named if not name.startswith(_OWN)]
    others.sort(key=lambda thread: thread[0] != "MainThread")
    kept: list[dict[str, Any]] = []
    left = RANK_LETTERS
    for name, calls in others:
        thread = {"name": name[:LETTERS], "frames": [call[-LETTERS:] for call in calls[-FRAMES:]]}
        left -= len(name) + sum(map(len, thread["frames"]))
        if kept and left < 0:
            case.missing.append(f"stacks: {len(others) - len(kept)} more threads of rank {rank} are left out")
            break
        kept.append(thread)
    return kept
