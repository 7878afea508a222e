"""Causes on the GPUs: clocks that are held down, GPUs that are idle, and steps that wait for the host."""

from __future__ import annotations

import re
from itertools import pairwise
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from trackside_daemon.diagnosis.causes import Cause, Evidence, series_evidence
from trackside_daemon.diagnosis.ledger import Slowed
from trackside_daemon.model.families import gpu as gpu_families
from trackside_daemon.model.text import percent, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from trackside_daemon.diagnosis.causes import Pools
    from trackside_daemon.diagnosis.facts import Facts
    from trackside_daemon.diagnosis.ledger import RankSpan
    from trackside_daemon.history.read.resources import Resource

IDLE = 0.01  # mean utilization below which a GPU did nothing
BUSY = 0.1  # mean utilization from which a GPU trained
IDLE_IN_STEPS = 0.2  # share of the compute time without a kernel from which it is worth a profile
# Phases of reinforcement learning in which the GPU of the training waits by design.
BY_DESIGN = re.compile(r"rollouts?|generat\w*|sampl(e|ing)|env(ironment)?|rewards?|collect\w*|act(ing)?")


def with_busy(facts: Facts) -> list[RankSpan]:
    """Return the spans of the ranks with the share of time in which their GPUs worked, where it is measured."""
    ranks = facts.gpu_ranks()
    spans = []
    for span in facts.spans:
        own = {uuid for uuid, on in ranks.items() if span.rank in on}
        if not own or span.first is None or span.last is None:
            spans.append(span)
            continue
        busy = _busy(facts, own, span.first, span.last)
        spans.append(span._replace(busy=busy, busy_before=_busy(facts, own, span.started, span.first)))
    return spans


def _busy(facts: Facts, uuids: set[str], began: float, ended: float) -> float | None:
    """Return the share of a time in which GPUs worked: by the counter of it, else by the mean of their utilization."""
    for family in (gpu_families.BUSY, gpu_families.UTILIZATION):
        shares = [
            min(1.0, value)
            for series in facts.of(family)
            if series.labels.get("uuid") in uuids
            for moment, value in (series.rates if family is gpu_families.BUSY else series.points)
            if began <= moment <= ended
        ]
        if shares:
            return fmean(shares)
    return None


def throttled(facts: Facts) -> list[Slowed]:
    """Return the times in which a limit held the SM clock of ranks' GPUs down, with the share of the clock that was lost.

    Of GPUs whose ranks are unknown, the one that lost most counts for all ranks, because the others wait for it.
    """
    clocks = {clock.labels.get("uuid", ""): clock for clock in facts.gpus(gpu_families.CLOCK, domain="sm")}
    limits = facts.gpus(gpu_families.CLOCK_LIMIT_ACTIVE)
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


def gpu_causes(facts: Facts, pools: Pools) -> Iterator[Cause]:
    """Yield the causes on the GPUs, besides the clocks, which the ledger has."""
    yield from _idle_gpus(facts)
    yield from _profiled(facts, pools)
    yield from _idle_in_steps(facts, pools)


def _idle_gpus(facts: Facts) -> Iterator[Cause]:
    """Yield the GPUs of the machine on which no run trained."""
    others = {info.labels["uuid"] for info in facts.of(gpu_families.RANK_INFO)} - facts.gpu_ranks().keys()
    means = {
        use.labels.get("gpu", "?"): use.mean
        for use in facts.of(gpu_families.UTILIZATION)
        if use.labels.get("uuid") not in others
    }
    idle = sorted((gpu for gpu, mean in means.items() if mean < IDLE), key=lambda gpu: (len(gpu), gpu))
    if not idle or not any(mean >= BUSY for mean in means.values()):
        return
    which = f"GPU {idle[0]}" if len(idle) == 1 else f"GPUs {', '.join(idle)}"
    hours = facts.wall * len(idle) / 3600
    used = ", ".join(
        f"GPU {gpu} {percent(mean)}" for gpu, mean in sorted(means.items(), key=lambda item: (len(item[0]), item[0]))
    )
    yield Cause(
        "idle_gpu",
        f"{which} did nothing all the time: {hours:.2g} GPU hours, if the job holds {'them' if len(idle) > 1 else 'it'}",
        (series_evidence(facts, f"mean utilization: {used}", gpu_families.UTILIZATION),),
        "start a rank on each GPU, or ask for fewer GPUs",
        gpu_families.UTILIZATION.name,
        gpu_hours=hours,
    )


# Classes of a profile, each with its cause, what happens, what to try, and the accounts that have its time already.
_CLASSES: Mapping[str, tuple[str, str, str]] = {
    "host": (
        "host_bound",
        "the GPU waited for the host to launch its work",
        "torch.compile, CUDA graphs, larger batches, or fewer small operators; take synchronisations out of the step",
    ),
    "copy": (
        "copies",
        "steps waited for copies and synchronisations",
        "pin_memory and non_blocking=True; read .item() and print losses rarely",
    ),
    "memory": (
        "allocations",
        "steps waited for allocations of memory",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, equal shapes, and no empty_cache() in the loop",
    ),
}


_WITHOUT_GPU: Mapping[str, tuple[str, str, str]] = {
    "host": (
        "host_bound",
        "steps ran no operator, or waited for the launch of small ones",
        "trackside capture --stacks names the Python function; fewer, larger operators, or torch.compile",
    )
}
"""What differs of `_CLASSES` in a profile without work on a GPU."""


def _profiled(facts: Facts, pools: Pools) -> Iterator[Cause]:
    """Yield what the newest profile shows of the time in steps, as if all steps were like those that it recorded."""
    if facts.profile is None or not (found := facts.profile.summary.get("bottleneck")):
        return
    shares: Mapping[str, Any] = found.get("shares", {})
    uses_gpu = any(rank.get("device") != "cpu" for rank in facts.profile.summary["ranks"].values())
    for kind, (name, happened, advice) in {**_CLASSES, **({} if uses_gpu else _WITHOUT_GPU)}.items():
        lost = pools.draw(float(shares.get(kind, 0.0)) * pools.left.get("compute", 0.0), "compute", least=0.02)
        if lost:
            text = found["text"] if found.get("class") == kind else f"{kind}: {percent(shares[kind])} of a step"
            evidence = Evidence(f"capture {facts.profile.id}: {shown(text)}", f"/api/v1/captures/{facts.profile.id}")
            check = f"the class {kind} in trackside capture {shown(facts.run['name'])}"
            yield pools.priced(Cause(name, happened, (evidence,), advice, check), lost, 0.0)


def _idle_in_steps(facts: Facts, pools: Pools) -> Iterator[Cause]:
    """Yield the time in steps without a kernel that nothing else explains."""
    spans = facts.spans
    measured = [span for span in spans if span.busy is not None and span.first is not None and span.last is not None]
    if not measured or any(BY_DESIGN.fullmatch(phase) for span in spans for phase in span.phases):
        return
    idle = fmean((1 - (span.busy or 0.0)) * ((span.last or 0.0) - (span.first or 0.0)) for span in measured)
    drawn = sum(
        pools.whole.get(account, 0.0) - pools.left.get(account, 0.0) for account in ("compute", "data", "checkpoint")
    )
    idle -= drawn + sum(pools.left.get(account, 0.0) for account in ("data", "checkpoint", "eval", "stall"))
    if idle < IDLE_IN_STEPS * pools.whole.get("compute", 0.0):
        return
    lost = pools.draw(idle, "compute")
    if lost:
        cause = Cause(
            "idle_in_steps",
            "the GPUs had no work within steps",
            (
                series_evidence(
                    facts,
                    f"mean utilization in steps: {percent(fmean(span.busy or 0.0 for span in measured))}",
                    gpu_families.UTILIZATION,
                ),
            ),
            f"see why: trackside capture {shown(facts.run['name'])} records some steps and names what they wait for",
            gpu_families.UTILIZATION.name,
        )
        yield pools.priced(cause, lost, 0.0)
