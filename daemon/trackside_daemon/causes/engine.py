"""All causes, asked about a slow-down against the time before, or about a run against nothing or a baseline."""

import sqlite3
from collections.abc import Sequence

from trackside_daemon.causes import attempts, gpus, long_steps, machine, other_alerts, steps
from trackside_daemon.causes.cause import Cause, LostTime
from trackside_daemon.causes.facts import Facts
from trackside_daemon.causes.readings import LEAST_WAIT, Readings, Rise, baseline_readings
from trackside_daemon.causes.verdict import Verdict
from trackside_daemon.history.read.series import LogTails
from trackside_daemon.model.families import gpu, host, process, training
from trackside_daemon.model.text import percent
from trackside_daemon.model.time_ledger import Ledger

# The special ones draw their seconds of a run first, and those of the accounts have the rest.
CAUSES = (
    *(gpus.CLOCK, gpus.NEIGHBOUR, gpus.LANES, gpus.XIDS, gpus.FAILING),
    *(machine.MEMORY, machine.STORAGE, machine.STEAL, machine.LIMIT, machine.CONTENTION),
    *(steps.FIRST_BATCHES, machine.PAGE_FAULTS),
    *(gpus.UNUSED, *gpus.PROFILED, gpus.IDLE_WITHIN),
    *(gpus.THROTTLED, steps.COLLECTIVES, steps.STRAGGLER, steps.DATA, steps.EXCHANGE, steps.CHECKPOINT, steps.EVAL),
    long_steps.PAUSES,
    *(attempts.START_UP, attempts.RESTART, attempts.REPEATED, attempts.STALL, attempts.IDLE_END, attempts.WASTED),
    *(attempts.RESUME, other_alerts.SLOWDOWN, attempts.FAILED, other_alerts.ALERTS, other_alerts.BEST_EVALUATION),
)
FAMILIES = [family.name for cause in CAUSES for family in cause.families]

MOST = 8  # causes of one slow-down

# What is compared, by the family that must be known for it.
_COMPARED = {
    gpu.CLOCK: "GPU clocks",
    gpu.PCIE_LINK_WIDTH: "PCIe links",
    host.MEMORY_WAITING: "memory pressure",
    host.IO_WAITING: "I/O pressure",
    host.CPU_WAITING: "CPU pressure",
    process.CPU_WAIT: "the wait for CPUs",
    training.PHASE_SECONDS: "the phases of the step",
}


def of_run(
    facts: Facts, accounts: Ledger, connection: sqlite3.Connection, tails: LogTails, stops: Verdict
) -> list[Cause]:
    """Return the causes of a run's lost time and of its trouble; no second has two. *stops* is what stops the run."""
    time = LostTime(facts, accounts, connection, tails, stops)
    for kind in CAUSES:
        if kind.lost is not None:
            time.found.extend(kind.lost(kind, time))
    return time.found


def of_slow_down(readings: Readings) -> list[Rise]:
    """Return the causes that can explain enough of a slow-down, the likeliest first."""
    rises = [rise for kind in CAUSES if kind.rose is not None for rise in kind.rose(readings)]
    best: dict[str, Rise] = {}
    for rise in sorted(filter(lambda one: one.counts, rises), key=lambda one: -one.weight):
        best.setdefault(rise.cause, rise)
    return list(best.values())[:MOST]


def of_baseline(connection: sqlite3.Connection, facts: Facts, usual: Facts, lost: float) -> tuple[list[Rise], str]:
    """Return the causes that can explain why a run is slower than its baseline, and what to conclude from them.

    Args:
        connection: In a transaction.
        facts: The run.
        usual: The baseline.
        lost: Share of the run's time that it lost against the baseline, above 0 and below 1.
    """
    readings = baseline_readings(connection, facts, usual, lost, FAMILIES)
    found = of_slow_down(readings)
    return found, conclusion(found, compared(readings))


def compared(readings: Readings) -> list[str]:
    """Return what has a usual level and one now; of the phases no cause takes all, so that one may have moved."""
    found = {family: readings.of(family) for family in _COMPARED}
    if any(level.rose(LEAST_WAIT) for _, level in found[training.PHASE_SECONDS]):
        del found[training.PHASE_SECONDS]
    return [_COMPARED[family] for family, levels in found.items() if levels]


def conclusion(causes: Sequence[Rise], known: Sequence[str]) -> str:
    """Return the likeliest cause as a sentence, or that nothing has moved of what is *known*; empty if nothing is."""
    if causes:
        first, *others = causes
        explains = "" if first.share is None else f" (this can explain {percent(first.share)} of the lost time)"
        also = f" Also, {others[0].text}." if others else ""
        return f"Likely cause: {first.text}{explains}.{also}"
    if not known:
        return ""
    return f"No cause was found; these have not moved more than usual: {', '.join(known)}."
