"""Suggestions about the size of a job: more or fewer CPUs, memory, workers, and what GPUs have left. None has a number of gain."""

from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import Any

from trackside_daemon.causes.cause import Cause, series_evidence
from trackside_daemon.causes.facts import Facts
from trackside_daemon.model.families import cgroup, gpu, host, process, training
from trackside_daemon.model.text import byte_size, counted, number, percent

SPARE = 1.25  # what a job should have, in relation to the most that it used
HALF = 0.5  # a job that uses less of a resource needs less of it
LEAST_CORES = 4
LEAST_BYTES = 8 * 2**30
HEAD_ROOM = 0.7  # share of a GPU's memory below which a larger batch may fit
TENSORS_IDLE, SM_BUSY = 0.05, 0.5  # activities at which matrices are computed without tensor cores
SEEN = 60.0  # seconds of a run from which on its workers would have been seen
LEAST_WAIT, NO_WAIT = 0.02, 0.002  # shares of the time that wait for data
WORKER_BUSY, WORKER_IDLE = 0.7, 0.2  # CPUs of a data loader worker
_CHECK = f"phase `data` of {training.PHASE_SECONDS.name}"


def suggestions(facts: Facts, resources: Sequence[Mapping[str, Any]], ledger: Mapping[str, float]) -> Iterator[Cause]:
    """Yield suggestions for the next run.

    Args:
        facts: The run.
        resources: Its `resources.resources`.
        ledger: Seconds by account.
    """
    waits = ledger.get("data", 0.0) / facts.wall if facts.wall else 0.0
    yield from _gpu_memory(facts)
    yield from _precision(facts, resources)
    yield from _workers(facts, resources, waits)
    yield from _cpus(facts, resources)
    yield from _memory(facts, resources)


def _gpu_memory(facts: Facts) -> Iterator[Cause]:
    sizes = {one.labels.get("uuid"): one.mean for one in facts.gpus(gpu.MEMORY)}
    used = [
        (one.high or 0.0, sizes[uuid])
        for one in facts.gpus(gpu.MEMORY_USED)
        if sizes.get(uuid := one.labels.get("uuid"))
    ]
    if not used or max(most / size for most, size in used) >= HEAD_ROOM:
        return
    most, size = max(used, key=lambda one: one[0] / one[1])
    yield Cause(
        "gpu_memory_head_room",
        f"at most {byte_size(most)} of {byte_size(size)} of a GPU's memory were in use",
        (series_evidence(facts, f"the most memory of a GPU in use: {percent(most / size)}", gpu.MEMORY_USED),),
        "a larger batch, or less activation checkpointing, may fit, if the training allows it",
        gpu.MEMORY_USED.name,
    )


def _precision(facts: Facts, resources: Sequence[Mapping[str, Any]]) -> Iterator[Cause]:
    tensor, sm = _mean(resources, "gpu_tensor_active"), _mean(resources, "gpu_sm_active")
    if tensor is not None and sm is not None and tensor < TENSORS_IDLE and sm >= SM_BUSY:
        text = f"SMs active {percent(sm)}, tensor cores {percent(tensor)}"
        yield Cause(
            "precision",
            f"the GPUs computed without their tensor cores ({text} of the time)",
            (series_evidence(facts, text, gpu.TENSOR_ACTIVE),),
            "train in bfloat16 (torch.autocast), or allow TF32 (torch.set_float32_matmul_precision)",
            gpu.TENSOR_ACTIVE.name,
        )


def _workers(facts: Facts, resources: Sequence[Mapping[str, Any]], waits: float) -> Iterator[Cause]:
    workers, cpu = _mean(resources, "dataloader_workers"), _mean(resources, "dataloader_cpu") or 0.0
    each = cpu / workers if workers else 0.0
    have = f"{workers:.3g} workers a rank, each with {each:.2g} CPUs" if workers else "no DataLoader workers"
    text = f"{have}, and {percent(waits)} of the time waits for data"
    evidence = (series_evidence(facts, text, process.WORKERS_CPU),)
    if waits >= LEAST_WAIT and _measured(facts) and (each >= WORKER_BUSY if workers else facts.wall >= SEEN):
        what = "more workers" if workers else "workers: num_workers=4 or more loads data in other processes"
        yield Cause("more_workers", text, evidence, f"give the DataLoader {what}", _CHECK)
    elif workers and workers > 2 and waits < NO_WAIT and each < WORKER_IDLE and "data" in _phases(facts):
        advice = "fewer workers would do, and free memory and CPUs"
        yield Cause("fewer_workers", text, evidence, advice, _CHECK)


def _cpus(facts: Facts, resources: Sequence[Mapping[str, Any]]) -> Iterator[Cause]:
    limits = [one.mean for one in facts.cgroups(cgroup.CPU_LIMIT)] or [one.mean for one in facts.of(host.CPUS)]
    own = [_p95(resources, name) for name in ("process_cpu", "dataloader_cpu")]
    used = sum(one for one in own if one is not None)
    if limits and own[0] is not None and min(limits) >= LEAST_CORES and used < HALF * min(limits):
        needs = max(1, ceil(SPARE * used))
        yield Cause(
            "fewer_cpus",
            f"the training used {number(used, 3)} of {number(min(limits), 3)} CPUs in 95 % of the time",
            (
                series_evidence(
                    facts, f"95th percentile of the CPUs of ranks and workers: {number(used, 3)}", process.CPU
                ),
            ),
            f"{counted(needs, 'CPU')} would do for this job",
            process.CPU.name,
        )


def _memory(facts: Facts, resources: Sequence[Mapping[str, Any]]) -> Iterator[Cause]:
    limits = [one.mean for one in facts.cgroups(cgroup.LIMIT)] or [one.mean for one in facts.of(host.MEMORY)]
    most, own = (
        [row["max"] for row in resources if row["quantity"] == name and row["of"]]
        for name in ("cgroup_memory", "process_memory")
    )
    # A cgroup in which most memory is not of the ranks is that of a session, or of the machine.
    if sum(own) < HALF * max(most, default=0.0):
        return
    if limits and most and min(limits) >= LEAST_BYTES and max(most) < HALF * min(limits):
        yield Cause(
            "less_memory",
            f"the training used at most {byte_size(max(most))} of {byte_size(min(limits))} of memory",
            (series_evidence(facts, f"the most memory of the cgroup: {byte_size(max(most))}", cgroup.WORKING_SET),),
            f"{byte_size(SPARE * max(most))} would do for this job",
            cgroup.WORKING_SET.name,
        )


def _measured(facts: Facts) -> bool:
    """Return whether the daemon sees the run's processes, so that it would see workers."""
    return bool(facts.processes())


def _phases(facts: Facts) -> set[str]:
    return {phase for span in facts.spans for phase in span.phases}


def _mean(resources: Sequence[Mapping[str, Any]], quantity: str) -> float | None:
    """Return the mean of a quantity over all resources."""
    rows = [float(row["mean"]) for row in resources if row["quantity"] == quantity]
    return rows[-1] if rows else None  # the last row is the only one, or that of all resources


def _p95(resources: Sequence[Mapping[str, Any]], quantity: str) -> float | None:
    """Return the sum of the 95th percentiles of a quantity over all resources."""
    rows = [row["p95"] for row in resources if row["quantity"] == quantity and row["of"]]
    return sum(rows) if rows else None
