"""Divide the wall time of a run into accounts; every second is in one account."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trackside.totals.phases import EVALS, SAVES
from trackside_daemon.detectors.run_view import SYNC_PHASES
from trackside_daemon.detectors.straggler import OWN, OWN_WITH_SYNC

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trackside_daemon.model.records import Account

ACCOUNTS = {
    "compute": "useful compute",
    "data": "data wait",
    "communication": "wait for the slowest rank",
    "throttled": "clocks held down",
    "checkpoint": "checkpoints",
    "eval": "evaluation",
    "start": "start-up",
    "gap": "between attempts",
    "repeated": "steps done again after a restart",
    "stall": "stalled",
    "end": "after the last step",
    "wasted": "steps after divergence or NaN",
}
"""The accounts, each with the words that people read."""


class RankSpan(NamedTuple):
    """One rank of one attempt; times are Unix seconds.

    Attributes:
        attempt: The attempt's number.
        rank: The rank.
        started: When the attempt started.
        ended: When the attempt ended, or now.
        first: The time of the rank's first push; None without one.
        last: The time of its last push.
        phases: Seconds by phase.
        account: Its stall and its restart, as the daemon measured them.
    """

    attempt: int
    rank: int
    started: float
    ended: float
    first: float | None
    last: float | None
    phases: Mapping[str, float]
    account: Account


class Slowed(NamedTuple):
    """A stretch of time in which only a part of the compute time was useful, and the account of the rest.

    Attributes:
        account: ``throttled`` or ``wasted``.
        began: Unix seconds.
        ended: Unix seconds.
        share: The share of the compute time that is lost, from 0 to 1.
    """

    account: str
    began: float
    ended: float
    share: float


def ledger(spans: Sequence[RankSpan], slowed: Sequence[Slowed] = ()) -> dict[str, float]:
    """Return seconds by account, largest first; they sum to the run's wall time.

    The accounts of an attempt are the means over its ranks.

    Args:
        spans: The ranks of all attempts.
        slowed: What took compute time of the ranks. Where they overlap, the first ones win.
    """
    total: dict[str, float] = {}
    before: float | None = None
    for attempt in sorted({span.attempt for span in spans}):
        ranks = [span for span in spans if span.attempt == attempt]
        gap = 0.0 if before is None else max(0.0, ranks[0].started - before)
        _add(total, {"gap": gap})
        own = _own_seconds(ranks)
        for span, seconds in zip(ranks, own, strict=True):
            _add(total, _rank_ledger(span, gap, max(own) - seconds, slowed), 1 / len(ranks))
        before = max(ranks[0].ended, before or 0.0)
    return dict(sorted(((name, seconds) for name, seconds in total.items() if seconds), key=lambda item: -item[1]))


def _own_seconds(ranks: Sequence[RankSpan]) -> list[float]:
    """Return for each rank the seconds of the phases in which it waits for no other one."""
    synced = any(not SYNC_PHASES.isdisjoint(span.phases) for span in ranks)
    own = OWN + OWN_WITH_SYNC if synced else OWN
    return [sum(span.phases.get(phase, 0.0) for phase in own) for span in ranks]


def _rank_ledger(span: RankSpan, gap: float, waited: float, slowed: Iterable[Slowed]) -> dict[str, float]:
    entries = _Entries(span.ended - span.started)
    if span.first is None or span.last is None:
        entries.put("stall", span.account.stall)
        entries.put("start", entries.left)
        return entries.seconds
    start = span.first - span.started
    # A rank that hangs pushes nothing more, so its stall is a part of the time after its last push.
    entries.put("stall", span.account.stall)
    entries.put("start", start)
    entries.put("end", span.ended - span.last - span.account.stall)
    middle = entries.left
    entries.put("repeated", span.account.restart - gap - start if span.account.caught else 0.0)
    # The phases of the repeated steps are a part of them.
    share = entries.left / middle if middle > 0 else 0.0
    for account, phases in (("data", ("data",)), ("checkpoint", SAVES), ("eval", EVALS)):
        entries.put(account, share * sum(span.phases.get(phase, 0.0) for phase in phases))
    # Ranks that are faster than the slowest wait for it at the next collective.
    entries.put("communication", share * waited)
    compute = entries.left
    length = span.last - span.first
    for loss in slowed:
        overlap = min(loss.ended, span.last) - max(loss.began, span.first)
        if overlap > 0 < length:
            entries.put(loss.account, compute * loss.share * overlap / length)
    entries.put("compute", entries.left)
    return entries.seconds


class _Entries:
    """Seconds by account, limited by what is left of a total."""

    def __init__(self, total: float) -> None:
        self.left = max(0.0, total)
        self.seconds: dict[str, float] = {}

    def put(self, account: str, seconds: float) -> None:
        """Move seconds to an account, at most what is left."""
        moved = min(max(0.0, seconds), self.left)
        self.left -= moved
        _add(self.seconds, {account: moved})


def _add(total: dict[str, float], entries: Mapping[str, float], weight: float = 1.0) -> None:
    for account, seconds in entries.items():
        total[account] = total.get(account, 0.0) + weight * seconds
