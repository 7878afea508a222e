"""The slowest rank, or the node of the slowest ranks, for which the others wait."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from trackside_daemon.causes.cause import Evidence, Kind, drawn_accounts
from trackside_daemon.detectors.straggler import NOISE
from trackside_daemon.model.families import training
from trackside_daemon.model.text import duration, shown
from trackside_daemon.model.time_ledger import own_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.causes.cause import Cause, LostTime

SLOW_NODE = 1.3  # times the own time of the other nodes' median rank from which all ranks of a node make it slow


def _straggler(kind: Kind, time: LostTime) -> Iterator[Cause]:
    """Yield the slowest rank, or its node.

    The ledger has the mean, and the slowest rank does not wait; at the others' pace the run would be shorter by what they
    wait.
    """
    facts = time.facts
    for waited, account in drawn_accounts(kind, time):
        lost = min(facts.wall, waited * facts.ranks / max(1, facts.ranks - 1))
        last = [span for span in facts.spans if span.attempt == facts.spans[-1].attempt]
        own = dict(zip([span.rank for span in last], own_seconds(last), strict=True))
        slowest = max(last, key=lambda span: own[span.rank])
        usual = median(own.values())
        if not usual or own[slowest.rank] < (1 + NOISE) * usual:
            yield kind.found(time, lost, account)
            continue
        excess = {
            phase: seconds - median(span.phases.get(phase, 0.0) for span in last)
            for phase, seconds in slowest.phases.items()
        }
        # Its own longer wait for data is what the others wait for, and not a second loss.
        time.draw(max(0.0, excess.get("data", 0.0)) / len(last), "data", least=0.0)
        node = shown(slowest.host)
        text = (
            f"rank {slowest.rank}{f' on {node}' if slowest.host else ''} took {duration(own[slowest.rank])} for its own work, "
            f"{own[slowest.rank] / usual:.2f} times the {duration(usual)} of the median rank, "
            f"most of the difference in phase `{shown(max(excess, key=lambda phase: excess[phase]))}`"
        )
        others = [own[span.rank] for span in last if span.host != slowest.host]
        same = [own[span.rank] for span in last if span.host == slowest.host]
        changes = {"summary": f"the other ranks waited for rank {slowest.rank}"}
        if others and min(same) >= SLOW_NODE * max(others):
            changes = {
                "cause": "slow_node",
                "summary": f"the other nodes waited for {node}, whose {len(same)} ranks are slow",
                "advice": f"drain {node}, and run on another node; compare its clocks, memory and network with those of the others",
            }
        yield kind.found(time, lost, Evidence(text, facts.api), account, **changes)


STRAGGLER = Kind(
    "straggler",
    "the other ranks waited for the slowest one",
    "give every rank the same work per step; compare the GPUs' clocks and what else runs on the slow rank's CPUs",
    training.STRAGGLER_RATIO.name,
    ("communication",),
    low=0.5,
    alerts=("StragglerRank",),
    lost=_straggler,
)
