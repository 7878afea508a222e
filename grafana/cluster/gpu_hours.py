"""Panels about GPU hours and energy: available, assigned and used.

Values without a counter are summed over at most `SAMPLES` times of the displayed range, so that a week of 8,000 GPUs costs no
more than an hour.
"""

from __future__ import annotations

from typing import Any

from grafana.board import Row
from grafana.panels import PLAIN, TARGETS, ZERO_IF_UP, Query, bars, lines, link, number

GPU = TARGETS.of_machine("gpu", "uuid")
SAMPLES = 60
SAMPLING_NOTE = f"Sampled at most {SAMPLES} times: a run between two samples is not included."
HOUR = 3600

VISIBLE = "sum(trackside_gpus_visible{HERE})"
ASSIGNED = f"count(max by ({GPU}) (trackside_gpu_rank_info{{HERE}}))"
BUSY = "sum(rate(trackside_gpu_busy_seconds_total{HERE}[$__rate_interval]))"
RANKS = f"max by ({GPU}, run) (trackside_gpu_rank_info{{RUN}})"
BY_RUN = f"count by (run) ({RANKS})"
WATTS_BY_RUN = f"sum by (run) ({RANKS} * on ({GPU}) group_left () max by ({GPU}) (trackside_gpu_power_watts{{HERE}}))"
BUSY_HOURS = f"sum(increase(trackside_gpu_busy_seconds_total{{HERE}}[$__range])) / {HOUR}"


def hours(amount: str) -> str:
    """Return a query for *amount* over the displayed time, in its unit times hours."""
    samples = "scalar(count_over_time(vector(1)[$__range:$__interval]))"
    return f"sum_over_time(({amount})[$__range:$__interval]) / {samples} * $__range_s / {HOUR}"


def row() -> Row:
    """Return the row with numbers above charts."""
    return Row("GPU hours and energy", *_numbers(), *_shares(), _over_time(), _by_run(), _energy())


def _number(title: str, description: str, unit: str, query: Query, **how: Any) -> object:
    return number(title, description, unit, query, width=4, **how).max_data_points(SAMPLES)


def _numbers() -> list[object]:
    available = hours(VISIBLE)
    return [
        _number(
            "GPU hours available",
            "Hours of all GPUs that were present in the displayed time, used or not.",
            "h",
            Query(available, "available", instant=True),
        ),
        _number(
            "GPU hours assigned",
            "Available GPU hours with a rank of any run on the GPU. The rest was free, or used by processes that trackside does not "
            "monitor.",
            "h",
            Query(f"({hours(ASSIGNED)} or vector(0)) and ({available})", "assigned", instant=True),
        ),
        _number(
            "GPU hours busy",
            "Available GPU hours in which a kernel ran.",
            "h",
            Query(BUSY_HOURS, "busy", instant=True),
        ),
        _number(
            "GPU hours idle",
            "Available GPU hours in which no kernel ran: free, or waiting for data, other ranks or a checkpoint.",
            "h",
            Query(f"clamp_min({available} - {BUSY_HOURS}, 0)", "idle", instant=True),
        ),
    ]


def _shares() -> list[object]:
    available = hours(VISIBLE)
    return [
        _number(
            "Share assigned",
            "Assigned GPU hours divided by available ones. If it is low, the queue is empty, or the jobs do not push to trackside.",
            "percentunit",
            Query(f"({hours(ASSIGNED)} or vector(0)) / ({available})", "assigned", instant=True),
            decimals=0,
        ),
        _number(
            "Share busy",
            "Busy GPU hours divided by available ones. If it is far below the assigned share, runs wait; see GPUs and their runs.",
            "percentunit",
            Query(f"{BUSY_HOURS} / ({available})", "busy", instant=True),
            decimals=0,
        ),
    ]


def _over_time() -> object:
    return lines(
        "GPUs available, assigned and busy",
        "GPUs between the available and the assigned line are free; those between the assigned and the busy line have a rank and "
        "wait. Fewer available than expected is GpuMissing.",
        "none",
        Query("sum(trackside_gpus_expected{HERE})", "expected"),
        Query(VISIBLE, "available"),
        Query(f"{ASSIGNED} or {ZERO_IF_UP}", "assigned"),
        Query(BUSY, "busy"),
        width=12,
        minimum=0,
        links=[link("GPUs", "trackside-gpus", "instance")],
    )


def _by_run() -> object:
    return _bars(
        "GPU hours by run",
        "The fifteen runs with the most. A GPU used by two runs counts for both. " + SAMPLING_NOTE,
        "h",
        hours(BY_RUN),
    )


def _energy() -> object:
    return _bars(
        "Energy by run",
        "Energy of a run's GPUs while its ranks used them, for the fifteen runs with the most. Nodes and cooling are not included. "
        + SAMPLING_NOTE,
        "kwatth",
        f"{hours(WATTS_BY_RUN)} / 1000",
    )


def _bars(title: str, description: str, unit: str, amount: str) -> object:
    panel = bars(
        title,
        description,
        unit,
        Query(f"topk(15, {amount})", "{{run}}", instant=True),
        width=6,
        levels=[PLAIN],
        links=[link("This run", "trackside-training", run="${__field.labels.run:percentencode}")],
        empty="no run",
    )
    return panel.max_data_points(SAMPLES)
