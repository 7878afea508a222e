"""The profile ``cluster`` of the metrics page: without series that no rule reads, for a Prometheus of hundreds of machines."""

from typing import cast

from msgspec.structs import replace

from trackside_daemon.alerts.rules.builtin.gpu import ACTIVE
from trackside_daemon.model.families import gpu, process, training
from trackside_daemon.model.metric import Distribution
from trackside_daemon.model.state import PageFamily, PageSeries

# Families without their series of value 0: those of a state, condition or error that is not there, and of absent workers.
WITHOUT_ZEROS = frozenset(
    {
        training.RANK_STATE,
        process.STATE,
        process.WORKERS,
        process.WORKERS_RESIDENT,
        process.WORKERS_ANONYMOUS,
        process.WORKERS_SHARED,
        process.WORKERS_CPU,
        process.WORKERS_BLOCKED,
        gpu.CLOCK_LIMIT_ACTIVE,
        gpu.XID_ERRORS,
        gpu.PCIE_ERRORS,
        gpu.ECC_VOLATILE_ERRORS,
        gpu.ROW_REMAP_BANKS,
        gpu.FABRIC_PROBLEM,
    }
)
LEFT_OUT = frozenset({gpu.PIPE_ACTIVE, gpu.CLOCK_MAX})

# The step's duration has its count and sum on the page, which give the mean, and no buckets.
_UNDIVIDED = replace(training.STEP_DURATION, buckets=())


def apply(page: list[PageFamily]) -> list[PageFamily]:
    """Return the page without these series."""
    reduced = (_reduced(rows) for rows in page if rows.metric not in LEFT_OUT)
    return [rows for rows in reduced if rows.series]


def _reduced(rows: PageFamily) -> PageFamily:
    if rows.metric in WITHOUT_ZEROS:
        kept = [pair for pair in zip(rows.series, rows.values, strict=True) if pair[1] or _is_averaged(pair[0])]
        return PageFamily(rows.metric, [one for one, _ in kept], [value for _, value in kept])
    if rows.metric is training.STEP_DURATION:
        values = [cast("Distribution", value) for value in rows.values]
        undivided: list[float | Distribution] = [value._replace(counts=(sum(value.counts),)) for value in values]
        return PageFamily(_UNDIVIDED, rows.series, undivided)
    return rows


def _is_averaged(one: PageSeries) -> bool:
    """Return whether a rule needs the zeros of a series: an average over a minute of what is above 0 would always be 1."""
    place = gpu.CLOCK_LIMIT_ACTIVE.labels.index("reason")
    return one.metric is gpu.CLOCK_LIMIT_ACTIVE and all(reason.matches(one.labels[place]) for reason in ACTIVE)
