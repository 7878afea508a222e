"""The causes that accounts of the ledger show: for each what happened, what to try, and how to check afterwards."""

from __future__ import annotations

from math import sqrt
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.diagnosis.causes import LEAST_SHARE, Cause, Evidence, alert_evidence
from trackside_daemon.model.families import gpu, training
from trackside_daemon.model.text import counted, duration, shown
from trackside_daemon.model.time_ledger import ACCOUNTS, own_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from trackside_daemon.diagnosis.causes import Pools
    from trackside_daemon.diagnosis.facts import Facts

USUAL_START = 30.0  # seconds that a start takes without a fault: imports, the first batch, the first compiled step
USUAL_END = 10.0  # seconds that an end takes without a fault: the last checkpoint, the exit
NAMED = 1.02  # times the own time of the median rank from which the slowest one is named
SLOW_NODE = 1.3  # times the own time of the other nodes' median rank from which all ranks of a node make it slow


class Advice(NamedTuple):
    """The words and the limits of an account's cause.

    Attributes:
        cause: Its name.
        accounts: Its accounts in the ledger.
        low: The share of the lost seconds that is gained at least; the rest may be hidden behind other work, or needed.
        usual: Seconds of the account in each attempt that are no loss.
        happened: What happened, in the words of a summary.
        advice: What to try.
        check: How to check afterwards.
        alerts: The alerts that are evidence of it.
        least: The share of the wall time from which it matters.
    """

    cause: str
    accounts: tuple[str, ...]
    low: float
    usual: float
    happened: str
    advice: str
    check: str
    alerts: tuple[str, ...] = ()
    least: float = LEAST_SHARE


ADVICE = (
    Advice(
        "throttled",
        ("throttled",),
        0.3,
        0.0,
        "heat or a power brake held the GPUs' clocks down",
        "improve the cooling, move the job to another node, or set a power limit on purpose",
        f"{gpu.CLOCK_LIMIT_ACTIVE.name}, {gpu.TEMPERATURE.name}",
        ("GpuThrottled", "GpuHot"),
    ),
    Advice(
        "straggler",
        ("communication",),
        0.5,
        0.0,
        "the other ranks waited for the slowest one",
        "give every rank the same work per step; compare the GPUs' clocks and what else runs on the slow rank's CPUs",
        training.STRAGGLER_RATIO.name,
        ("StragglerRank",),
    ),
    Advice(
        "data_wait",
        ("data",),
        0.5,
        0.0,
        "the training waited for data",
        "give the DataLoader more workers, pin_memory and prefetch_factor; move decoding and augmentation out of the step; "
        "check the storage",
        f"phase `data` of trackside show, {training.DATA_WAIT.name}",
        ("DataLoaderBottleneck", "DataLoaderDied"),
    ),
    Advice(
        "communication",
        ("exchange",),
        0.0,
        0.0,
        "the ranks exchanged gradients or parameters while nothing else ran",
        "overlap the communication with backward, use larger buckets or gradient accumulation; check NVLink and InfiniBand",
        "the parts of a step in trackside capture",
        ("NvlinkDegraded", "InfinibandDegraded", "PcieDegraded"),
        least=0.1,
    ),
    Advice(
        "checkpoint",
        ("checkpoint",),
        0.3,
        0.0,
        "the training waited for its checkpoints",
        "save less often, asynchronously, or to local storage first",
        training.CHECKPOINT_DURATION.name,
    ),
    Advice(
        "eval",
        ("eval",),
        0.0,
        0.0,
        "evaluation took time from training",
        "evaluate less often, on fewer samples, or with larger batches",
        "phase `eval` of trackside show",
    ),
    Advice(
        "start_up",
        ("idle_before", "start"),
        0.3,
        USUAL_START,
        "the start took long before the first step",
        "cache compiled kernels and the dataset's index; load the checkpoint from local storage",
        "the first step in trackside show",
    ),
    Advice(
        "restart",
        ("gap",),
        0.3,
        0.0,
        "the run stood still between its attempts",
        "restart at once, for example with torchrun --max-restarts; keep a spare node",
        "attempts in trackside show",
        ("TrainingProcessDied", "OomKilled"),
    ),
    Advice(
        "repeated",
        ("repeated",),
        0.3,
        0.0,
        "a restart trained the same steps again",
        "save checkpoints more often, and resume from the newest one",
        "steps done again after a restart, in trackside show",
        ("LossRestart",),
    ),
    Advice(
        "stall",
        ("stall",),
        0.8,
        0.0,
        "the training stood still",
        "see the stacks and the verdict in the alert TrainingStalled; set a timeout for collectives",
        "alerts TrainingStalled and RankSilent",
        ("TrainingStalled", "RankSilent"),
    ),
    Advice(
        "idle_end",
        ("idle_after",),
        0.5,
        USUAL_END,
        "the process lived on after its last step",
        "end the process, and release its GPUs, after the last step",
        "the time of the last step in trackside show",
    ),
    Advice(
        "wasted",
        ("wasted",),
        0.8,
        0.0,
        "the training went on after its loss was NaN or had diverged",
        "stop at a critical alert, resume from the last good checkpoint with a lower learning rate or clipped gradients",
        "alerts NonFinite and LossDiverging",
        ("NonFinite", "LossDiverging"),
    ),
)


def account_causes(facts: Facts, pools: Pools) -> Iterator[Cause]:
    """Yield a cause for each account that lost a share of the time that matters, of what other causes left of it."""
    attempts = len({span.attempt for span in facts.spans})
    for advice in ADVICE:
        whole = sum(pools.left.get(account, 0.0) for account in advice.accounts)
        lost = pools.draw(whole - attempts * advice.usual, *advice.accounts, least=advice.least)
        if not lost:
            continue
        names = " and ".join(ACCOUNTS[account] for account in advice.accounts)
        account = Evidence(f"{names}: {duration(whole)} of {duration(facts.wall)}", f"{facts.api}/diagnosis")
        found = Found(Cause(advice.cause, advice.happened, (), advice.advice, advice.check), lost)
        if details := _DETAILS.get(advice.cause):
            found = details(facts, pools, found)
        evidence = (*alert_evidence(facts, *advice.alerts), *found.cause.evidence, account)
        yield pools.priced(found.cause._replace(evidence=evidence), found.lost, advice.low)


class Found(NamedTuple):
    """A cause, and the seconds that it lost."""

    cause: Cause
    lost: float


def _throttled(_: Facts, pools: Pools, found: Found) -> Found:
    """Add what the other ranks waited for the one with the lowest clock: the run is as slow as that one."""
    most = max(entries.get("throttled", 0.0) for entries in pools.by_rank.values())
    return found._replace(lost=found.lost + pools.draw(most - found.lost, "communication", "compute", least=0.0))


def _straggler(facts: Facts, pools: Pools, found: Found) -> Found:
    """Name the slowest rank, or the node of the slowest ranks.

    The ledger has the mean, and the slowest rank does not wait; at the others' pace the run would be shorter by what they
    wait.
    """
    cause, lost = found.cause, min(facts.wall, found.lost * facts.ranks / max(1, facts.ranks - 1))
    last = [span for span in facts.spans if span.attempt == facts.spans[-1].attempt]
    own = dict(zip([span.rank for span in last], own_seconds(last), strict=True))
    slowest = max(last, key=lambda span: own[span.rank])
    usual = median(own.values())
    if not usual or own[slowest.rank] < NAMED * usual:
        return Found(cause, lost)
    excess = {
        phase: seconds - median(span.phases.get(phase, 0.0) for span in last)
        for phase, seconds in slowest.phases.items()
    }
    # Its own longer wait for data is what the others wait for, and not a second loss.
    pools.draw(max(0.0, excess.get("data", 0.0)) / len(last), "data", least=0.0)
    where = f" on {shown(slowest.host)}" if slowest.host else ""
    text = (
        f"rank {slowest.rank}{where} took {duration(own[slowest.rank])} for its own work, "
        f"{own[slowest.rank] / usual:.2f} times the {duration(usual)} of the median rank, "
        f"most of the difference in phase `{shown(max(excess, key=lambda phase: excess[phase]))}`"
    )
    cause = cause._replace(evidence=(Evidence(text, facts.api),))
    others = [own[span.rank] for span in last if span.host != slowest.host]
    same = [own[span.rank] for span in last if span.host == slowest.host]
    if not others or min(same) < SLOW_NODE * max(others):
        return Found(cause._replace(summary=f"the other ranks waited for rank {slowest.rank}"), lost)
    node = shown(slowest.host)
    happened = f"the other nodes waited for {node}, whose {len(same)} ranks are slow"
    advice = f"drain {node}, and run on another node; compare its clocks, memory and network with those of the others"
    return Found(cause._replace(cause="slow_node", summary=happened, advice=advice), lost)


def _repeated(facts: Facts, pools: Pools, found: Found) -> Found:
    """Add what the resumes cost."""
    found = _saves(facts, pools, found)
    resumes = (Evidence(str(one["text"]), facts.api) for one in facts.resumes if "text" in one)
    return found._replace(cause=found.cause._replace(evidence=(*resumes, *found.cause.evidence)))


def _saves(facts: Facts, _: Pools, found: Found) -> Found:
    return found._replace(cause=found.cause._replace(evidence=tuple(_cadence(facts))))


def _cadence(facts: Facts) -> Iterator[Evidence]:
    """Yield how often the run saves, and how often it would best do by Young's formula (Young 1974)."""
    lowest = min((span.rank for span in facts.spans), default=0)
    spans = [span for span in facts.spans if span.rank == lowest]
    saves = sum(span.account.saves for span in spans)
    seconds = sum(span.phases.get(phase, 0.0) for span in spans for phase in ("checkpoint", "save"))
    if not saves or not seconds:
        return
    each = seconds / saves
    yield Evidence(
        f"{counted(saves, 'checkpoint')} of {duration(each)}, one per {duration(facts.wall / saves)}", facts.api
    )
    ran = duration(facts.reliability.seconds)
    if not facts.reliability.failures:
        yield Evidence(f"no failure in {ran} of attempts in this history, so that Young's formula gives no interval")
        return
    mean = facts.reliability.seconds / facts.reliability.failures
    failures = f"{counted(facts.reliability.failures, 'failure')} in {ran} of attempts in this history"
    yield Evidence(f"Young's formula: one per {duration(sqrt(2 * each * mean))} costs least, at {failures}")


_DETAILS: Mapping[str, Callable[[Facts, Pools, Found], Found]] = {
    "throttled": _throttled,
    "straggler": _straggler,
    "checkpoint": _saves,
    "repeated": _repeated,
}
