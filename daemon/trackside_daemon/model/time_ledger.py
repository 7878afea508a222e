"""Divide the wall time of a run into accounts; every second is in one account."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from trackside.rl_keys import PHASES
from trackside.totals.phases import COMPILE, EVALS, OTHER, PAUSES, SAVES
from trackside_daemon.model.records import Account
from trackside_daemon.model.robust import NORMAL
from trackside_daemon.model.stall import is_quiet
from trackside_daemon.model.text import duration, shown

OWN = ("data", "forward")  # phases in which a rank waits for no other rank

# Further own phases if the run has a phase for waiting. Otherwise they include it: DDP reduces gradients in
# backward().
OWN_WITH_SYNC = ("backward", "optimizer", OTHER)

# Phases in which a rank waits for other ranks, which are part of a step too.
SYNC_PHASES = frozenset(("sync", "allreduce", "all_reduce", "reduce", "communication", "comm", "barrier", "collective"))

# A rank is slow from so many robust deviations above the median rank on, apart from the share by which equal ranks differ.
SCORE, NOISE = 4.0, 0.02

# Phases that are no work on a step.
NO_WORK = SYNC_PHASES | PAUSES | PHASES["wait"] | PHASES["weight_sync"]

# Phases in which nothing is trained, by account.
LOST_PHASES = {"data": frozenset(("data",)), "checkpoint": SAVES, "eval": EVALS}

LEAST_LONG = 0.01  # share of the time that long steps take at least beyond the others: single ones are usual

ACCOUNTS = {
    "compute": "useful compute",
    "data": "data wait",
    "generate": "generation of samples",
    "reward": "computation of rewards",
    "weight_sync": "synchronization of weights with the generation",
    "wait": "wait for generated samples",
    "communication": "wait for the slowest rank",
    "exchange": "communication between ranks",
    "throttled": "clocks held down",
    "long_steps": "long steps",
    "cpu": "wait for a CPU",
    "checkpoint": "checkpoints",
    "eval": "evaluation",
    "start": "start-up",
    "idle_before": "GPUs idle before the first step",
    "gap": "between attempts",
    "repeated": "steps done again after a restart",
    "stall": "stalled",
    "idle_after": "after the last step",
    "wasted": "steps after divergence or NaN",
}
"""The accounts, each with the words that people read."""


def lost_in(phases: Mapping[str, float]) -> dict[str, float]:
    """Return lost seconds by account, for the accounts of `LOST_PHASES` that have at least one of these phases."""
    lost: dict[str, float] = {}
    for account, names in LOST_PHASES.items():
        if not names.isdisjoint(phases):
            lost[account] = sum(phases.get(name, 0.0) for name in names)
    return lost


class RankSpan(NamedTuple):
    """One rank of one attempt; times are Unix seconds."""

    attempt: int  # the attempt's number
    rank: int
    started: float  # when the attempt started
    ended: float  # when the attempt ended, or now
    first: float | None  # the time of the rank's first push; None without one
    last: float | None  # the time of its last push
    phases: Mapping[str, float]  # seconds by phase
    account: Account  # its stall and its restart, as the daemon measured them
    host: str = ""  # the name of its machine; empty if unknown
    # Share of the time between its pushes in which its GPUs worked, from 0 to 1; None if it is not measured.
    busy: float | None = None
    busy_before: float | None = None  # the same of the time before its first push
    before: Mapping[str, float] = {}  # the part of the phases before its first push; *after* that after its last push
    after: Mapping[str, float] = {}
    lives: bool = False  # the attempt has not ended, so that the time after the last push is no end
    usual: float = 0.0  # seconds of a step of it
    # Seconds between its pushes by which long steps exceeded the median one; *longest* that of the longest.
    long: float = 0.0
    longest: float = 0.0
    cpu_wait: float = 0.0  # seconds between its pushes in which its main thread waited for a CPU
    steps: int = 0  # number of its steps; 0 if unknown

    @property
    def in_steps(self) -> dict[str, float]:
        """Seconds by phase between its first push and its last one."""
        outside = (self.before, self.after)
        return {
            phase: max(0.0, seconds - sum(part.get(phase, 0.0) for part in outside))
            for phase, seconds in self.phases.items()
        }

    @property
    def stands(self) -> bool:
        """True if it lives, and has made no step for much longer than usual, evaluations and checkpoints apart."""
        if not self.lives or self.last is None:
            return False
        paused = sum(seconds for account, seconds in lost_in(self.after).items() if account != "data")
        return is_quiet(self.ended - self.last - paused, self.usual)


class Slowed(NamedTuple):
    """A stretch of time in which only a part of the compute time was useful, and the account of the rest."""

    account: str  # ``throttled`` or ``wasted``
    began: float  # Unix seconds
    ended: float  # Unix seconds
    share: float  # the share of the compute time that is lost, from 0 to 1
    ranks: frozenset[int] = frozenset()  # the ranks that it slowed down; empty for all


class Ledger(NamedTuple):
    """Seconds by account, the largest first."""

    whole: dict[str, float]  # the mean over the ranks of each attempt; they sum to the wall time
    by_rank: dict[int, dict[str, float]]  # those of each rank, in the attempts that it was part of
    # Those of each rank in each attempt, by attempt and rank, with the time since the attempt before.
    by_attempt: dict[int, dict[int, dict[str, float]]]


def ledger(spans: Sequence[RankSpan], slowed: Sequence[Slowed] = ()) -> Ledger:
    """Return seconds by account.

    Args:
        spans: The ranks of all attempts.
        slowed: What took compute time of the ranks. Where they overlap, the first ones win.
    """
    total: dict[str, float] = {}
    by_rank: dict[int, dict[str, float]] = {}
    by_attempt: dict[int, dict[int, dict[str, float]]] = {}
    before: float | None = None
    for attempt in sorted({span.attempt for span in spans}):
        ranks = [_after(span, before) for span in spans if span.attempt == attempt]
        gap = 0.0 if before is None else max(0.0, ranks[0].started - before)
        for span, waited in zip(ranks, waits(ranks), strict=True):
            entries = {"gap": gap, **_rank_ledger(span, gap, waited, slowed)}
            _add(total, entries, 1 / len(ranks))
            _add(by_rank.setdefault(span.rank, {}), entries)
            by_attempt.setdefault(attempt, {})[span.rank] = _sorted(entries)
        before = max(ranks[0].ended, before or 0.0)
    return Ledger(_sorted(total), {rank: _sorted(entries) for rank, entries in by_rank.items()}, by_attempt)


def _after(span: RankSpan, before: float | None) -> RankSpan:
    """Return a rank without the time before the end of the attempt before, which may live on while the next one starts."""
    if before is None or span.started >= before:
        return span
    first = None if span.first is None else max(before, span.first)
    last = None if span.last is None else max(before, span.last)
    return span._replace(started=before, ended=max(before, span.ended), first=first, last=last)


def own_times(ranks: Sequence[Mapping[str, float]]) -> list[float]:
    """Return for each rank the seconds in which it waits for no other one, from the seconds by phase of the same steps.

    The waits are in a phase of their own, or else in backward. Then the slowest rank does not wait, so that its backward is
    all its own, and that of another rank is as much longer than its forward as the slowest one's. A run may also wait where
    nothing marks it, as for a GPU. So there are two answers: all time but the waits, and that of `OWN` phases alone. Waits
    that are not seen make the ranks alike in the first one, so the one that sets a rank apart counts.
    """
    synced = _synced(ranks)
    waiting = frozenset(() if synced else OWN_WITH_SYNC) - {OTHER}
    answers = [_own(ranks, frozenset((*OWN, *OWN_WITH_SYNC)) - {OTHER}, waiting)]
    if synced or all("backward" in rank for rank in ranks):
        answers.append(_own(ranks, frozenset().union(*ranks) - NO_WORK, waiting - {"optimizer"}))
    return max(answers, key=lambda own: max(own) - lower_median(own))


def _own(ranks: Sequence[Mapping[str, float]], phases: frozenset[str], waiting: frozenset[str]) -> list[float]:
    """Return the seconds of each rank in *phases*, without what it waits for other ranks in those of *waiting*."""
    outside = [_sum(rank, phases - waiting) for rank in ranks]
    slowest = ranks[outside.index(max(outside))]
    forward = slowest.get("forward", 0.0)
    ratio = _sum(slowest, waiting) / forward if forward else 0.0
    return [
        seconds + min(ratio * rank.get("forward", 0.0), _sum(rank, waiting))
        for rank, seconds in zip(ranks, outside, strict=True)
    ]


def slow_from(own: Collection[float]) -> float:
    """Return from how many seconds of its own a rank is slower than ranks differ by chance."""
    usual = lower_median(own)
    spread = lower_median([abs(seconds - usual) for seconds in own])
    return usual + SCORE * (NORMAL * spread + NOISE * usual)


def lower_median(values: Iterable[float]) -> float:
    """Return the lower median: with two ranks, the slow one must not count as half of the reference."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]


def _sum(rank: Mapping[str, float], phases: Iterable[str]) -> float:
    return sum(rank.get(phase, 0.0) for phase in phases)


def _synced(ranks: Sequence[Mapping[str, float]]) -> bool:
    return any(not SYNC_PHASES.isdisjoint(phases) for phases in ranks)


class Excess(NamedTuple):
    """The phase in which a rank takes longer than the others, and its seconds and those of the median rank in it."""

    phase: str
    seconds: float
    usual: float

    def text(self, rank: int, steps: float = 1.0) -> str:
        """Return what the rank does, with the seconds of one of the *steps*."""
        own, usual = self.seconds / steps, self.usual / steps
        if self.phase == "data":
            return f"rank {rank} waits {duration(own)} for its data, the others {duration(usual)}"
        where = "outside of any phase" if self.phase == OTHER else f"in {shown(self.phase)}"
        return f"rank {rank} takes {duration(own - usual)} longer {where}"


def excess(ranks: Sequence[Mapping[str, float]], slowest: int) -> Excess:
    """Return in which phase the rank at a place is longer than the median rank, most of all."""
    found = [
        Excess(phase, seconds, lower_median(rank.get(phase, 0.0) for rank in ranks))
        for phase, seconds in ranks[slowest].items()
        if phase not in NO_WORK
    ]
    return max(found, key=lambda one: one.seconds - one.usual, default=Excess(OTHER, 0.0, 0.0))


def waits(ranks: Sequence[RankSpan]) -> list[dict[str, float]]:
    """Return for each rank the seconds that it waited for the slowest one, and those of the communication itself."""
    phases = [span.in_steps for span in ranks]
    own = own_times(phases)
    waited = [max(own) - seconds for seconds in own]
    if not _synced(phases):
        return [{"communication": seconds} for seconds in waited]
    synced = [_sum(rank, SYNC_PHASES) for rank in phases]
    # The rank that waits least is the slowest one, and all of its time is communication.
    measured = [seconds - min(synced) for seconds in synced]
    # Most waits may be where no phase is: in time that is none of a rank's own.
    others = [_sum(rank, rank.keys() - NO_WORK) - seconds for rank, seconds in zip(phases, own, strict=True)]
    unmarked = [min(pair) for pair in zip(waited, others, strict=True)]
    waited = measured if 2 * max(measured) >= max(unmarked) else unmarked
    return [{"communication": seconds, "exchange": min(synced)} for seconds in waited]


def _rank_ledger(span: RankSpan, gap: float, waited: Mapping[str, float], slowed: Sequence[Slowed]) -> dict[str, float]:
    entries = _Entries(span.ended - span.started)
    entries.put("stall", span.account.stall)
    if span.first is None or span.last is None:
        _put_start(entries, entries.left, span)
        return entries.seconds
    start = _put_phases(entries, span.first - span.started, span.before)
    # A rank that hangs pushes nothing more, so its stall is a part of the time after its last push.
    _put_start(entries, start, span)
    ends = span.ended - span.last
    idle = _put_phases(entries, ends - span.account.stall, span.after)
    # It stood still from its last push on, before that was seen. A rank that lives and does not is within a step.
    stood = span.stands or 0 < span.account.stall <= ends
    entries.put("stall" if stood else "idle_after", 0.0 if span.lives and not stood else idle)
    middle, length = entries.left, span.last - span.first
    entries.put("repeated", span.account.restart - gap - start if span.account.caught else 0.0)
    wasted = sum(loss.share * _part(loss, span) for loss in slowed if loss.account == "wasted")
    entries.put("wasted", middle * wasted)
    # The phases of the repeated and the wasted steps are a part of them.
    share = entries.left / middle if middle > 0 else 0.0
    idle = length if span.busy is None else (1 - span.busy) * length
    generated = () if PHASES["generate"].isdisjoint(span.phases) else PHASES.items()
    roles = [(role, phases, length) for role, phases in generated if role != "train"]
    paused = (("checkpoint", SAVES), ("eval", EVALS), ("start", (COMPILE,)))
    parts = (("data", ("data",), idle), *((account, phases, length) for account, phases in paused), *roles)
    known = 0.0
    if span.account.stall > ends:  # it went on after that, and stood still before it was seen
        known = max(span.account.stall, span.longest)
        entries.put("stall", share * (known - span.account.stall))
    in_steps = span.in_steps
    for account, phases, most in parts:
        spent = _sum(in_steps, phases)
        known += spent
        entries.put(account, share * min(most, spent))
    for account, seconds in waited.items():
        entries.put(account, share * seconds)
    # What a step waited for by its phases is a part of its length, and so is a wait for a CPU.
    long = span.long - known - waited.get("communication", 0.0)
    long = long if long >= LEAST_LONG * length else 0.0
    entries.put("long_steps", share * long)
    entries.put("cpu", share * min(idle, span.cpu_wait - long))
    compute = entries.left
    for loss in slowed:
        if loss.account != "wasted":
            entries.put(loss.account, compute * loss.share * min(1.0, _part(loss, span) / max(1e-9, 1 - wasted)))
    entries.put("compute", entries.left)
    return entries.seconds


def _put_phases(entries: _Entries, seconds: float, phases: Mapping[str, float]) -> float:
    """Put what phases without training took of a time outside of the steps; return the seconds that are left."""
    left = seconds
    for account, spent in lost_in(phases).items():
        moved = min(max(0.0, left), spent)
        entries.put(account, moved)
        left -= moved
    return left


def _put_start(entries: _Entries, seconds: float, span: RankSpan) -> None:
    """Divide the time before the first push into that in which the GPUs worked and the rest."""
    idle = 0.0 if span.busy_before is None else 1 - span.busy_before
    before = min(max(0.0, seconds), entries.left)
    entries.put("idle_before", idle * before)
    entries.put("start", (1 - idle) * before)


def _part(loss: Slowed, span: RankSpan) -> float:
    """Return the share of the time between the pushes of a rank that overlaps with a stretch of time."""
    if (
        span.first is None
        or span.last is None
        or span.last <= span.first
        or (loss.ranks and span.rank not in loss.ranks)
    ):
        return 0.0
    return max(0.0, min(loss.ended, span.last) - max(loss.began, span.first)) / (span.last - span.first)


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


def _sorted(total: Mapping[str, float]) -> dict[str, float]:
    return dict(sorted(((name, seconds) for name, seconds in total.items() if seconds), key=lambda item: -item[1]))
