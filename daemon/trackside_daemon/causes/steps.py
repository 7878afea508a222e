"""Waits of a step: for data, checkpoints, evaluations, the exchange with other ranks, and the slowest of these."""

from collections.abc import Collection, Iterator
from functools import partial
from math import ceil, inf, isfinite, nan, sqrt
from statistics import median

from trackside.totals.loader_workers import READY, TRANSFORM, TRANSFORM_CPU, WORKERS
from trackside_daemon.causes.cause import MEASURED, Cause, Evidence, Kind, LostTime, drawn_accounts, of_accounts
from trackside_daemon.causes.facts import Facts
from trackside_daemon.causes.readings import Readings, Rise
from trackside_daemon.history.read import alert_reader, reader
from trackside_daemon.history.read.summary import summary
from trackside_daemon.model.families import cgroup, host, training
from trackside_daemon.model.text import counted, duration, number, shown
from trackside_daemon.model.time_ledger import excess, lower_median, own_times, slow_from
from trackside_daemon.model.troubles import TROUBLES


def _longer(cause: str, phase: str, doing: str, readings: Readings) -> Iterator[Rise]:
    """Yield a longer phase of a rank, which is a symptom: something else makes it longer."""
    what = f"the share of time that rank {{rank}} spends {doing}"
    rises = readings.longer(cause, what, training.PHASE_SECONDS, phase=phase)
    return (rise._replace(symptom=True) for rise in rises)


def _first_batches(kind: Kind, time: LostTime) -> Iterator[Cause]:
    """Yield the waits for the first batches of epochs, while the loader starts its workers."""
    facts = time.facts
    waited = sum(span.account.first_wait for span in facts.spans) / facts.ranks
    if lost := kind.draw(time, waited):
        yield kind.found(time, lost, Evidence(f"waits for first batches: {duration(waited)} a rank", facts.api))


def _saves(kind: Kind, time: LostTime) -> Iterator[Cause]:
    for lost, account in drawn_accounts(kind, time):
        yield kind.found(time, lost, *cadence(time.facts), account)


BUSY = 0.5  # share of a batch's time from which a worker computes; below, it waits for storage or for a CPU
PAUSED = ("start", "idle_before", "idle_after", "gap", "eval", "checkpoint")
"""Accounts in which no batch is consumed."""


def _data(kind: Kind, time: LostTime) -> Iterator[Cause]:
    for lost, account in drawn_accounts(kind, time):
        evidence, advice = _workers(time, kind.advice)
        yield kind.found(time, lost, account, *evidence, advice=advice)


def _workers(time: LostTime, advice: str, rank: int | None = None) -> tuple[tuple[Evidence, ...], str]:
    """Return what the loaders' workers of a rank did, of the lowest one without it, and what to try."""
    means = _loaders(time, None if rank is None else [rank])
    if not means:
        return (), advice
    workers, ready, wall, cpu = means[min(means) if rank is None else rank]
    ledger = time.whole if rank is None else time.by_rank.get(rank, time.whole)
    spent = sum(seconds for account, seconds in ledger.items() if account not in PAUSED)
    # The workers are as fast as the training gets batches; without its waits it would need them faster by as much.
    needed = ceil(workers * spent / max(spent - ledger.get("data", 0.0), spent / 100) - 0.05)
    busy = cpu >= BUSY * wall
    takes = f"{duration(cpu)} of CPU" if busy else f"{duration(wall)}, of which {duration(cpu)} are of CPU,"
    text = f"transforms take {takes} a batch in {counted(round(workers), 'worker')}"
    evidence = Evidence(f"{text}; {number(ready, 2)} batches were ready on average", time.facts.api)
    cores = [one.mean for one in time.facts.cgroups(cgroup.CPU_LIMIT)] or [one.mean for one in time.facts.of(host.CPUS)]
    fit = min(cores, default=inf) / max(1, time.facts.ranks // len({span.host for span in time.facts.spans}))
    if not busy:
        return (evidence,), f"{text}, and wait the rest of it: for storage, or for a CPU that others use; {advice}"
    if needed <= fit:
        return (evidence,), f"{text}: {needed} would do; {advice}"
    return (evidence,), f"{text}: {needed} would do, on more CPUs than there are; make the transforms cheaper; {advice}"


def _loaders(time: LostTime, ranks: Collection[int] | None) -> dict[int, list[float]]:
    """Return by rank the means of its loaders in the last attempt: workers, batches ready, seconds and CPU seconds of a batch.

    For *ranks* see `reader.series`.
    """
    keys, means = (WORKERS, READY, TRANSFORM, TRANSFORM_CPU), dict[int, dict[str, float]]()
    for series in reader.series(time.connection, time.facts.run["id"], keys, ranks, tails=time.tails):
        mean = summary(time.connection, series.series, series.tail)["mean"]
        means.setdefault(series.rank or 0, {})[series.series.key] = float(mean)
    found = {number: [of.get(key, nan) for key in keys] for number, of in means.items()}
    return {number: of for number, of in found.items() if all(map(isfinite, of))}


def _waits_in_turn(time: LostTime, slowest: int) -> bool:
    """Return whether the loaders of all ranks are as slow: while one waits for the slowest rank, its own batch gets ready."""
    each = {number: of[2] / of[0] for number, of in _loaders(time, ()).items() if of[0]}
    return slowest in each and len(each) > 1 and each[slowest] < SLOW_LOADER * lower_median(each.values())


def cadence(facts: Facts) -> Iterator[Evidence]:
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


FIRST_BATCHES = Kind(
    "first_batches",
    "each epoch began with a wait for its first batch",
    "if the workers end with each epoch, persistent_workers=True keeps them; longer epochs have fewer starts",
    training.FIRST_WAIT.name,
    ("data",),
    low=0.5,
    alerts=("DataLoaderBottleneck",),
    lost=_first_batches,
)
DATA = Kind(
    "data_wait",
    "the training waited for data",
    "give the DataLoader more workers, pin_memory and prefetch_factor; move decoding and augmentation out of the step; "
    "check the storage",
    f"phase `data` of {training.PHASE_SECONDS.name}, {training.DATA_WAIT.name}",
    ("data",),
    low=0.5,
    alerts=("DataLoaderBottleneck", "DataLoaderDied"),
    lost=_data,
    rose=partial(_longer, "data_wait", "data", "waiting for data"),
)
EXCHANGE = Kind(
    "communication",
    "the ranks exchanged gradients or parameters while nothing else ran",
    "overlap the communication with backward, use larger buckets or gradient accumulation; check NVLink and InfiniBand",
    "the parts of a step in trackside capture",
    ("exchange",),
    least=0.1,
    alerts=("NvlinkDegraded", "InfinibandDegraded", "PcieDegraded"),
    lost=of_accounts,
)


def _slow_collectives(kind: Kind, time: LostTime) -> Iterator[Cause]:
    """Yield what a slow link cost: the share of the exchange by which its operations were slower, while the alert fired."""
    facts = time.facts
    exchanged = sum(time.whole.get(account, 0.0) for account in kind.accounts) / facts.wall if facts.wall else 0.0
    for listed in facts.alerts:
        alert = alert_reader.alert(time.connection, listed["id"]) if listed["alert"] in kind.alerts else None
        evidence = {} if alert is None else alert["evidence"]
        value, usual = evidence.get("value"), evidence.get("usual")
        if alert is None or not value or not usual:
            continue
        ended = facts.ended if alert["ended"] is None else alert["ended"]
        lost = max(0.0, ended - alert["started"]) * (1 - value / usual) * exchanged
        lost = kind.draw(time, lost) if evidence.get("kind") == "link" else 0.0
        advice = TROUBLES[alert["alert"]].advice(evidence.get("kind", ""), shown(facts.run["name"]))
        yield kind.found(time, lost or None, summary=shown(alert["summary"]), advice=advice)
        return  # the others would have the same seconds


COLLECTIVES = Kind(
    "slow_collective",
    check="alert CollectiveSlow",
    accounts=("exchange", "communication"),
    low=0.5,
    alerts=("CollectiveSlow",),
    lost=_slow_collectives,
)
CHECKPOINT = Kind(
    "checkpoint",
    "the training waited for its checkpoints",
    "save less often, asynchronously, or to local storage first",
    training.CHECKPOINT_DURATION.name,
    ("checkpoint",),
    low=MEASURED,
    lost=_saves,
    rose=partial(_longer, "checkpoint", "checkpoint", "writing checkpoints"),
)
EVAL = Kind(
    "eval",
    "evaluation took time from training",
    "evaluate less often, on fewer samples, or with larger batches",
    f"phase `eval` of {training.PHASE_SECONDS.name}",
    ("eval",),
    low=MEASURED,
    lost=of_accounts,
    rose=partial(_longer, "eval", "eval", "evaluating"),
)


ADVICE = {
    "data": "look at the data loader and the storage of that rank: its workers, its shard, its local cache",
    "prepare": "look at what this rank does with a batch before the model gets it: copies to its device (pin_memory=True and "
    "non_blocking=True), transforms of the batch",
    "optimizer": "look for work that this rank alone does in its optimizer's step, such as hooks, copies or logging",
    "other": "look for work that this rank alone does between the stages of a step, such as logging, metrics or reads of values",
}
"""What to try, by the phase in which a rank is slow."""

SLOW_LOADER = 1.3  # times the median rank's seconds a batch from which a rank's loader alone is slow
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
        phases = [span.in_steps for span in last]
        own = dict(zip([span.rank for span in last], own_times(phases), strict=True))
        slowest = max(last, key=lambda span: own[span.rank])
        usual = median(own.values())
        if not usual or own[slowest.rank] < slow_from(own.values()):
            yield kind.found(time, lost, account)
            continue
        most = excess(phases, last.index(slowest))
        if most.phase == "data" and _waits_in_turn(time, slowest.rank):
            time.left["data"] = time.left.get("data", 0.0) + waited
            continue
        if most.phase == "data":  # what the others wait for is no second loss
            time.draw((most.seconds - most.usual) / len(last), "data", least=0.0)
        node = shown(slowest.host)
        text = (
            f"rank {slowest.rank}{f' on {node}' if slowest.host else ''} took {duration(own[slowest.rank])} for its own work, "
            f"{own[slowest.rank] / usual:.2f} times the {duration(usual)} of the median rank, "
            f"most of the difference in phase `{shown(most.phase)}`"
        )
        others = [own[span.rank] for span in last if span.host != slowest.host]
        same = [own[span.rank] for span in last if span.host == slowest.host]
        shown_too: tuple[Evidence, ...] = ()
        advice = ADVICE.get(most.phase, kind.advice)
        if most.phase == "data":
            shown_too, advice = _workers(time, advice, slowest.rank)
        changes = {
            "summary": f"the other ranks waited for rank {slowest.rank}; {most.text(slowest.rank, slowest.steps or 1)}",
            "advice": advice,
        }
        if others and min(same) >= SLOW_NODE * max(others):
            changes = {
                "cause": "slow_node",
                "summary": f"the other nodes waited for {node}, whose {len(same)} ranks are slow",
                "advice": f"drain {node}, and run on another node; compare its clocks, memory and network with those of the others",
            }
        yield kind.found(time, lost, Evidence(text, facts.api), account, *shown_too, **changes)


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
