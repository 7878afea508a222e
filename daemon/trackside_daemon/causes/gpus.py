"""Other processes on the ranks' GPUs, errors and narrow links, low clocks, idle GPUs, and steps that wait for the host."""

import re
from collections.abc import Iterator
from functools import partial
from statistics import fmean

from trackside_daemon.causes.cause import Cause, Evidence, Kind, LostTime, drawn_accounts, series_evidence
from trackside_daemon.causes.readings import Readings, Rise, level
from trackside_daemon.history.read.resources import Resource
from trackside_daemon.model.families import gpu as gpu_families
from trackside_daemon.model.text import byte_size, percent, shown, with_unit

ERRORS = {
    gpu_families.ECC_ERRORS: "ECC errors",
    gpu_families.REMAPPED_ROWS: "remapped memory rows",
    gpu_families.PCIE_REPLAYS: "PCIe replays",
    gpu_families.PCIE_ERRORS: "PCIe errors",
    gpu_families.NVLINK_ERRORS: "NVLink errors",
}
LATE = 30.0  # seconds by which the history may be late to see a process or an error
LEAST_USE = 0.05  # utilization by another process that matters
IDLE = 0.01  # mean utilization below which a GPU did nothing
BUSY = 0.1  # mean utilization from which a GPU trained
IDLE_IN_STEPS = 0.2  # share of the compute time without a kernel from which it is worth a profile
# Phases of reinforcement learning in which the GPU of the training waits by design.
BY_DESIGN = re.compile(r"rollouts?|generat\w*|sampl(e|ing)|env(ironment)?|rewards?|collect\w*|act(ing)?")


def _others(readings: Readings) -> Iterator[Rise]:
    """Yield the processes outside of the training that came to the ranks' GPUs, or use them more than before."""
    gpus = {gpu for rank in readings.ranks for gpu in rank.gpus}
    for held in readings.series(gpu_families.PROCESS_MEMORY):
        gpu, pid = held.labels.get("gpu", ""), held.labels.get("pid", "")
        if gpu not in gpus or pid in readings.pids or held.points[-1][0] < readings.slow.began:
            continue
        use = readings.series(gpu_families.PROCESS_SM_UTILIZATION, gpu=gpu, pid=pid)
        before, now = _use(readings, use)
        came = readings.slow.lasting or held.points[0][0] >= readings.slow.began - LATE
        if not came and now - before < LEAST_USE:
            continue
        name = readings.commands.get(pid, "")
        who = f"process {pid} ({name})" if name else f"process {pid}"
        used = f" and uses {percent(now)} of it" if use else f" and holds {byte_size(held.points[-1][1])} of it"
        text = f"{who}, which is not part of the training, {'runs' if came else 'ran already'} on GPU {gpu}{used}"
        # Two processes share a GPU in turns.
        share = min(1.0, (now - before if use else 0.5) / readings.slow.lost)
        yield Rise("gpu_neighbour", text, share, level([before] * 4, now) if use else None)


def _use(readings: Readings, series: list[Resource]) -> tuple[float, float]:
    """Return the mean utilization by a process before the slow-down and during it."""
    points = [point for one in series for point in one.points]
    before = [value for time, value in points if time < readings.slow.began - LATE]
    during = [value for time, value in points if time >= readings.slow.began - LATE]
    return sum(before) / max(1, len(before)), sum(during) / max(1, len(during))


def _lanes(readings: Readings) -> Iterator[Rise]:
    for labels, lanes in readings.of(gpu_families.PCIE_LINK_WIDTH):
        if lanes.fell(SLOWER):
            what = f"the PCIe link of GPU {labels['gpu']}"
            yield readings.slower("pcie_link", what, lanes, lambda count: f"{count:.0f} lanes")


def _xids(readings: Readings) -> Iterator[Rise]:
    gpus = {gpu for rank in readings.ranks for gpu in rank.gpus}
    for one in readings.series(gpu_families.XID_LAST):
        gpu, newest = one.labels.get("gpu"), one.points[-1][1]
        if gpu in gpus and readings.slow.began - LATE <= newest <= readings.slow.ended + LATE:
            yield Rise("gpu_xid", f"GPU {gpu} had the error Xid {one.labels.get('xid', '?')}", None)


def _errors(readings: Readings) -> Iterator[Rise]:
    for family, noun in ERRORS.items():
        for labels, errors in readings.of(family):
            # Corrected errors come by the thousand and cost nothing.
            if labels.get("kind") != "corrected" and errors.rose(0.0) and not errors.usual:
                kind = " ".join(labels[name] for name in ("kind", "error", "cause") if name in labels)
                text = f"GPU {labels['gpu']} has new {noun}" + (f" ({kind})" if kind else "")
                yield Rise("gpu_errors", text, None, errors)


def _idle(kind: Kind, time: LostTime) -> Iterator[Cause]:
    """Yield the GPUs of the machine on which no run trained."""
    facts = time.facts
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
    summary = kind.happened.format(which, hours, "them" if len(idle) > 1 else "it")
    shown = series_evidence(facts, f"mean utilization: {used}", gpu_families.UTILIZATION)
    yield kind.found(time, None, shown, summary=summary, gpu_hours=hours)


def _profiled(class_: str, kind: Kind, time: LostTime) -> Iterator[Cause]:
    """Yield what the newest profile shows of a class of a step's time, as if all steps were like those that it recorded."""
    profile = time.facts.profile
    if profile is None or not (found := profile.summary.get("bottleneck")):
        return
    share = float(found.get("shares", {}).get(class_, 0.0))
    if lost := kind.draw(time, share * time.left.get("compute", 0.0)):
        text = found["text"] if found.get("class") == class_ else f"{class_}: {percent(share)} of a step"
        evidence = Evidence(f"capture {profile.id}: {shown(text)}", f"/api/v1/captures/{profile.id}")
        check = f"the class {class_} in trackside capture {shown(time.facts.run['name'])}"
        uses_gpu = any(rank.get("device") != "cpu" for rank in profile.summary["ranks"].values())
        changes = {} if uses_gpu else _WITHOUT_GPU.get(class_, {})
        yield kind.found(time, lost, evidence, check=check, **changes)


# Words of a class of a profile without work on a GPU.
_WITHOUT_GPU = {
    "host": {
        "summary": "steps ran no operator, or waited for the launch of small ones",
        "advice": "trackside capture --stacks names the Python function; fewer, larger operators, or torch.compile",
    }
}


def _idle_in_steps(kind: Kind, time: LostTime) -> Iterator[Cause]:
    """Yield the time in steps without a kernel that nothing else explains."""
    facts, left = time.facts, time.left
    spans = facts.spans
    measured = [span for span in spans if span.busy is not None and span.first is not None and span.last is not None]
    if not measured or any(BY_DESIGN.fullmatch(phase) for span in spans for phase in span.phases):
        return
    idle = fmean((1 - (span.busy or 0.0)) * ((span.last or 0.0) - (span.first or 0.0)) for span in measured)
    drawn = sum(time.whole.get(account, 0.0) - left.get(account, 0.0) for account in ("compute", "data", "checkpoint"))
    idle -= drawn + sum(left.get(account, 0.0) for account in ("data", "checkpoint", "eval", "stall"))
    if idle < IDLE_IN_STEPS * time.whole.get("compute", 0.0):
        return
    if lost := kind.draw(time, idle):
        text = f"mean utilization in steps: {percent(fmean(span.busy or 0.0 for span in measured))}"
        advice = kind.advice.format(shown(facts.run["name"]))
        yield kind.found(time, lost, series_evidence(facts, text, gpu_families.UTILIZATION), advice=advice)


NEIGHBOUR = Kind(
    "gpu_neighbour", families=(gpu_families.PROCESS_MEMORY, gpu_families.PROCESS_SM_UTILIZATION), rose=_others
)
LANES = Kind("pcie_link", families=(gpu_families.PCIE_LINK_WIDTH,), rose=_lanes)
XIDS = Kind("gpu_xid", families=(gpu_families.XID_LAST,), rose=_xids)
FAILING = Kind("gpu_errors", families=tuple(ERRORS), rose=_errors)
UNUSED = Kind(
    "idle_gpu",
    "{} did nothing all the time: {:.2g} GPU hours, if the job holds {}",
    "start a rank on each GPU, or ask for fewer GPUs",
    gpu_families.UTILIZATION.name,
    lost=_idle,
)
PROFILED = tuple(
    Kind(name, happened, advice, accounts=("compute",), least=0.02, lost=partial(_profiled, class_))
    for class_, name, happened, advice in (
        (
            "host",
            "host_bound",
            "the GPU waited for the host to launch its work",
            "torch.compile, CUDA graphs, larger batches, or fewer small operators; take synchronisations out of the step",
        ),
        (
            "copy",
            "copies",
            "steps waited for copies and synchronisations",
            "pin_memory and non_blocking=True; read .item() and print losses rarely",
        ),
        (
            "memory",
            "allocations",
            "steps waited for allocations of memory",
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, equal shapes, and no empty_cache() in the loop",
        ),
    )
)
IDLE_WITHIN = Kind(
    "idle_in_steps",
    "the GPUs had no work within steps",
    "see why: trackside capture {} records some steps and names what they wait for",
    gpu_families.UTILIZATION.name,
    ("compute",),
    lost=_idle_in_steps,
)


SLOWER = 0.97  # a clock or a number of lanes below this share of its usual one explains something
IDLE_CLOCK = "gpu_idle"  # reason of a low clock that follows from too little work

# Words for the reasons of a low clock, the ones that say most first.
_REASONS = {
    "hw_thermal": "thermal slowdown by the hardware",
    "sw_thermal": "thermal slowdown by the driver",
    "hw_power_brake": "power brake",
    "hw_slowdown": "slowdown by the hardware",
    "sw_power_cap": "power limit",
    "sync_boost": "the clock of another GPU",
    "applications_clocks": "set application clocks",
}


def _slower_clock(readings: Readings) -> Iterator[Rise]:
    for labels, clock in readings.of(gpu_families.CLOCK, domain="sm"):
        if not clock.fell(SLOWER):
            continue
        active = _clock_limits(readings, labels["gpu"])
        reasons = [text for reason, text in _REASONS.items() if reason in active]
        # An idle GPU lowers its clock by itself.
        if IDLE_CLOCK in active and not reasons:
            continue
        reasons += [
            f"its limit was lowered from {with_unit(power.usual, 'W')} to {with_unit(power.now, 'W')}"
            for _, power in readings.of(gpu_families.POWER_LIMIT, gpu=labels["gpu"], limit="enforced")
            if power.fell(SLOWER)
        ]
        why = f": {', '.join(reasons)}" if reasons else ""
        what = f"the clock of GPU {labels['gpu']}"
        yield readings.slower("gpu_clock", what, clock, lambda hertz: with_unit(hertz, "Hz"), more=why)


def _clock_limits(readings: Readings, number: str) -> set[str]:
    """Return the reasons that lowered a GPU's clock during the slow-down."""
    slow = readings.slow
    return {
        one.labels.get("reason", "")
        for one in readings.series(gpu_families.CLOCK_LIMIT_ACTIVE, gpu=number)
        if any(value for time, value in one.points if time >= slow.began) and one.points[-1][0] >= slow.began
    }


def _throttled(kind: Kind, time: LostTime) -> Iterator[Cause]:
    """Add what the other ranks waited for the one with the lowest clock: the run is as slow as that one."""
    for lost, account in drawn_accounts(kind, time):
        most = max(entries.get("throttled", 0.0) for entries in time.by_rank.values())
        waited = time.draw(most - lost, "communication", "compute", least=0.0)
        yield kind.found(time, lost + waited, account)


CLOCK = Kind(
    "gpu_clock",
    families=(gpu_families.CLOCK, gpu_families.CLOCK_LIMIT_ACTIVE, gpu_families.POWER_LIMIT),
    rose=_slower_clock,
)
THROTTLED = Kind(
    "throttled",
    "heat or a power brake held the GPUs' clocks down",
    "improve the cooling, move the job to another node, or set a power limit on purpose",
    f"{gpu_families.CLOCK_LIMIT_ACTIVE.name}, {gpu_families.TEMPERATURE.name}",
    ("throttled",),
    low=0.3,
    alerts=("GpuThrottled", "GpuHot"),
    lost=_throttled,
)
