"""Causes on the GPUs: clocks that are held down, GPUs that are idle, and steps that wait for the host."""

from __future__ import annotations

import re
from statistics import fmean
from typing import TYPE_CHECKING, Any

from trackside_daemon.diagnosis.causes import Cause, Evidence, series_evidence
from trackside_daemon.model.families import gpu as gpu_families
from trackside_daemon.model.text import percent, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trackside_daemon.diagnosis.causes import Pools
    from trackside_daemon.diagnosis.facts import Facts

IDLE = 0.01  # mean utilization below which a GPU did nothing
BUSY = 0.1  # mean utilization from which a GPU trained
IDLE_IN_STEPS = 0.2  # share of the compute time without a kernel from which it is worth a profile
# Phases of reinforcement learning in which the GPU of the training waits by design.
BY_DESIGN = re.compile(r"rollouts?|generat\w*|sampl(e|ing)|env(ironment)?|rewards?|collect\w*|act(ing)?")


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
