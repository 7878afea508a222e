"""The accounts of a run's time by the inputs that the history has, and the run with its goodput, the share of useful compute."""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from trackside_daemon.causes.cause import LISTED_SHARE
from trackside_daemon.causes.facts import Facts, read_times
from trackside_daemon.causes.long_steps import read_long_steps
from trackside_daemon.causes.verdict import DIVERGED, verdict
from trackside_daemon.history.read import reader
from trackside_daemon.history.read.resources import Resource
from trackside_daemon.history.read.series import LogTails
from trackside_daemon.history.read.summary import SUMMARIES
from trackside_daemon.model.families import gpu, process
from trackside_daemon.model.families import training as f
from trackside_daemon.model.metric import Batch, Sample
from trackside_daemon.model.records import CALM, CRITICAL, Account
from trackside_daemon.model.state import State
from trackside_daemon.model.time_ledger import Ledger, RankSpan, Slowed, ledger


def read_run(connection: sqlite3.Connection, uid: str, limit: int = SUMMARIES, offset: int = 0) -> dict[str, Any]:
    """Return everything about a run except its samples: `reader.run`, and where its time went if that was measured.

    Returns:
        ``verdict``: what stops it, in one sentence, or empty; ``goodput``: the share of useful compute in the wall time; ``lost``: those of the other accounts, the largest first; and
        each attempt's ``lost``: their seconds by rank.

    Raises:
        UnknownRunError: There is no run with this id.
        ValueError: A block is damaged.
    """
    run = reader.run(connection, uid, limit, offset)
    tails = LogTails(connection)
    facts, accounts = divide(read_times(connection, uid, tails, run), connection, tails)
    run = {**run, "verdict": verdict(facts, connection).text}
    if not _is_measured(facts, accounts):
        return run
    for attempt in run["attempt_list"]:
        by_rank = accounts.by_attempt.get(attempt["attempt"], {})
        attempt["lost"] = {str(rank): _lost(seconds) for rank, seconds in by_rank.items()}
    shares = {account: min(1.0, seconds / facts.wall) for account, seconds in accounts.whole.items()}
    return {**run, "goodput": shares.get("compute", 0.0), "lost": _lost(shares)}


def read_goodput(connection: sqlite3.Connection, uid: str) -> dict[int, float] | None:
    """Return the share of useful compute in the time of each rank of a run, by its id; None if the time was not measured.

    Raises:
        UnknownRunError: There is no run with this id.
        ValueError: A block is damaged.
    """
    tails = LogTails(connection)
    facts, accounts = divide(read_times(connection, uid, tails), connection, tails)
    totals = {rank: sum(seconds.values()) for rank, seconds in accounts.by_rank.items()}
    known = [rank for rank, total in totals.items() if total] if _is_measured(facts, accounts) else []
    return {rank: accounts.by_rank[rank].get("compute", 0.0) / totals[rank] for rank in known} or None


def _is_measured(facts: Facts, accounts: Ledger) -> bool:
    """Return whether the run reported something of its time, or spent a share on its start that matters."""
    if any(span.phases or span.account != Account() for span in facts.spans):
        return facts.wall > 0
    started = accounts.whole.get("start", 0.0) + accounts.whole.get("idle_before", 0.0)
    return any(span.first is not None for span in facts.spans) and started >= LISTED_SHARE * facts.wall > 0


def _lost(entries: Mapping[str, float]) -> dict[str, float]:
    return {account: amount for account, amount in entries.items() if account != "compute"}


def divide(facts: Facts, connection: sqlite3.Connection, tails: LogTails) -> tuple[Facts, Ledger]:
    """Return the facts with long steps, waits for CPUs and what the GPUs of each rank worked, and the accounts of the run's time."""
    facts = facts._replace(long=read_long_steps(connection, facts.run["id"], tails))
    facts = facts._replace(spans=_with_waits(facts))
    facts = facts._replace(spans=_with_busy(facts))
    return facts, ledger(facts.spans, [*_wasted(facts), *_throttled(facts)])


def _with_waits(facts: Facts) -> list[RankSpan]:
    """Return the spans of the ranks with the seconds of long steps, and those in which their main threads waited for a CPU."""
    waiting: dict[int, list[Resource]] = {}
    processes = facts.processes()
    for counter in facts.of(process.CPU_WAIT):
        if (rank := processes.get(counter.labels.get("pid", ""))) is not None:
            waiting.setdefault(rank, []).append(counter)
    spans = []
    for span in facts.spans:
        if span.first is not None and span.last is not None:
            long = facts.long.get(span.attempt)
            within = (
                [point for point in counter.points if span.first <= point[0] <= span.last]
                for counter in waiting.get(span.rank, ())
            )
            span = span._replace(  # noqa: PLW2901
                long=0.0 if long is None else long.share * (span.last - span.first),
                longest=0.0 if long is None else long.longest,
                cpu_wait=max((points[-1][1] - points[0][1] for points in within if points), default=0.0),
            )
        spans.append(span)
    return spans


def _with_busy(facts: Facts) -> list[RankSpan]:
    """Return the spans of the ranks with the share of time in which their GPUs worked, where it is measured."""
    simulated = {info.labels["uuid"] for info in facts.of(gpu.INFO, source="simulated")}  # no training runs on these
    ranks = facts.gpu_ranks()
    spans = []
    for span in facts.spans:
        own = {uuid for uuid, on in ranks.items() if span.rank in on and uuid not in simulated}
        if not own or span.first is None or span.last is None:
            spans.append(span)
            continue
        busy = _busy(facts, own, span.first, span.last)
        spans.append(span._replace(busy=busy, busy_before=_busy(facts, own, span.started, span.first)))
    return spans


def _busy(facts: Facts, uuids: set[str], began: float, ended: float) -> float | None:
    """Return the share of a time in which GPUs worked: by the counter of it, else by the mean of their utilization."""
    for family in (gpu.BUSY, gpu.UTILIZATION):
        shares = [
            min(1.0, value)
            for series in facts.gpus(family)
            if series.labels.get("uuid") in uuids
            for moment, value in (series.rates if family is gpu.BUSY else series.points)
            if began <= moment <= ended
        ]
        if shares:
            return fmean(shares)
    return None


def _throttled(facts: Facts) -> list[Slowed]:
    """Return the times in which a limit held the SM clock of ranks' GPUs down, with the share of the clock that was lost.

    Of GPUs whose ranks are unknown, the one that lost most counts for all ranks, because the others wait for it.
    """
    limits = facts.gpus(gpu.CLOCK_LIMIT_ACTIVE, nonzero=True)
    if not limits:
        return []
    clocks = {clock.labels.get("uuid", ""): clock for clock in facts.gpus(gpu.CLOCK, domain="sm")}
    held = {uuid: _held_moments(clock, limits) for uuid, clock in clocks.items()}
    free = {
        uuid: [value for moment, value in clock.points if moment not in held[uuid]] for uuid, clock in clocks.items()
    }
    every = [value for values in free.values() for value in values]
    usual = {uuid: median(values or every) for uuid, values in free.items() if values or every}
    ranks = facts.gpu_ranks()
    by_gpu = [
        [slowed._replace(ranks=frozenset(ranks.get(uuid, ()))) for slowed in _held_down(clock, held[uuid], usual[uuid])]
        for uuid, clock in clocks.items()
        if uuid in usual
    ]
    if ranks:
        return [slowed for one in by_gpu for slowed in one]
    return max(by_gpu, key=lambda slowed: sum((one.ended - one.began) * one.share for one in slowed), default=[])


def _held_moments(clock: Resource, limits: Iterable[Resource]) -> set[float]:
    return {
        moment
        for limit in limits
        if limit.labels.get("uuid") == clock.labels.get("uuid")
        for moment, active in limit.points
        if active
    }


def _held_down(clock: Resource, held: set[float], usual: float) -> Iterator[Slowed]:
    """Yield the times in which a GPU's clock was below the usual one, because of a fault."""
    for (began, _), (ended, value) in pairwise(clock.points):
        if ended in held and value < usual:
            yield Slowed("throttled", began, ended, 1 - value / usual)


def _wasted(facts: Facts) -> Iterator[Slowed]:
    """Yield the times in which a critical alert about the loss fired, without overlap, until the end if it never ended.

    Of one that came again, the time in which the loss was good meanwhile is not wasted.
    """
    bad = [alert for alert in facts.alerts if alert["alert"] in DIVERGED and alert["severity"] == CRITICAL]
    until = 0.0
    for alert in sorted(bad, key=lambda alert: float(alert["started"])):
        ended = facts.ended if alert["ended"] is None else alert["ended"]
        if ended > until:
            share = 1 - alert[CALM] / max(1e-9, ended - alert["started"])
            yield Slowed("wasted", max(until, alert["started"]), ended, max(0.0, share))
            until = ended


SOURCE = "training:goodput"
EVERY = 15.0  # seconds after which the goodput of a run is read again
_RUN_ID = f.RUN_INFO.labels.index("run_id")


def goodput_batch(
    state: State, now: float, read: Callable[[str], Mapping[int, float] | None], read_at: Mapping[str, float]
) -> Batch:
    """Return the goodput of the ranks on the page.

    Args:
        state: The newest values.
        now: Seconds of the monotonic clock.
        read: Returns the goodput of each rank of a run, by its id; None while it is not known.
        read_at: When each run was last read, by its id.
    """
    infos, started = state.values(now, f.RUN_INFO, f.STARTED)
    shares: dict[tuple[str, ...], float] = {}
    for labels in sorted(infos, key=lambda labels: read_at.get(labels[_RUN_ID], 0.0)):  # who waits longest comes first
        shares |= {(labels[0], str(rank)): share for rank, share in (read(labels[_RUN_ID]) or {}).items()}
    return Batch(SOURCE, [Sample(f.GOODPUT, rank, shares[rank]) for rank in started if rank in shares], complete=True)
