"""GPU hours and energy: what there was, what was assigned, and what was used.

What has no counter is summed up over moments of the time that is shown, `MOMENTS` of them at most: a week of 8,000 GPUs is not
more to read than an hour of them.
"""

from __future__ import annotations

from typing import Any

from grafana.board import Row
from grafana.panels import NONE, PLAIN, Query, bars, lines, link, number

from trackside_daemon.alerts.rules.query import listed

GPU = listed(("gpu", "uuid"))
MOMENTS = 60
SAMPLED = f"Read at {MOMENTS} moments at most: a run between two of them is not in it."
HOUR = 3600

VISIBLE = "sum(trackside_gpus_visible{HERE})"
ASSIGNED = f"count(max by ({GPU}) (trackside_gpu_rank_info{{HERE}}))"
BUSY = "sum(rate(trackside_gpu_busy_seconds_total{HERE}[$__rate_interval]))"
RANKS = f"max by ({GPU}, run) (trackside_gpu_rank_info{{RUN}})"
BY_RUN = f"count by (run) ({RANKS})"
WATTS_BY_RUN = f"sum by (run) ({RANKS} * on ({GPU}) group_left () max by ({GPU}) (trackside_gpu_power_watts{{HERE}}))"
BUSY_HOURS = f"sum(increase(trackside_gpu_busy_seconds_total{{HERE}}[$__range])) / {HOUR}"


def hours(amount: str) -> str:
    """A query: *amount* over the time that is shown, in its unit times hours."""
    moments = "scalar(count_over_time(vector(1)[$__range:$__interval]))"
    return f"sum_over_time(({amount})[$__range:$__interval]) / {moments} * $__range_s / {HOUR}"


def row() -> Row:
    """Numbers above charts."""
    return Row("GPU hours and energy", *_numbers(), *_shares(), _over_time(), _by_run(), _energy())


def _number(title: str, description: str, unit: str, query: Query, **how: Any) -> object:
    return number(title, description, unit, query, width=4, **how).max_data_points(MOMENTS)


def _numbers() -> list[object]:
    there = hours(VISIBLE)
    return [
        _number(
            "GPU hours there",
            "Hours of all GPUs that were there in the time that is shown, used or not.",
            "h",
            Query(there, "there", instant=True),
        ),
        _number(
            "GPU hours with a rank",
            "Of these, the hours in which a rank of any run was on the GPU. The rest was free, or used by what Trackside does not "
            "watch.",
            "h",
            Query(f"({hours(ASSIGNED)} or vector(0)) and ({there})", "with a rank", instant=True),
        ),
        _number(
            "GPU hours busy",
            "Of these, the hours in which a kernel ran.",
            "h",
            Query(BUSY_HOURS, "busy", instant=True),
        ),
        _number(
            "GPU hours idle",
            "Hours in which GPUs were there and no kernel ran: free, waiting for data, for other ranks, or for a checkpoint.",
            "h",
            Query(f"clamp_min({there} - {BUSY_HOURS}, 0)", "idle", instant=True),
        ),
    ]


def _shares() -> list[object]:
    there = hours(VISIBLE)
    return [
        _number(
            "Share with a rank",
            "GPU hours with a rank over those that were there. Low: the queue is empty, or the jobs do not push to Trackside.",
            "percentunit",
            Query(f"({hours(ASSIGNED)} or vector(0)) / ({there})", "with a rank", instant=True),
            decimals=0,
        ),
        _number(
            "Share busy",
            "GPU hours busy over those that were there. Far below the share with a rank: runs wait, see GPUs and their runs.",
            "percentunit",
            Query(f"{BUSY_HOURS} / ({there})", "busy", instant=True),
            decimals=0,
        ),
    ]


def _over_time() -> object:
    return lines(
        "GPUs there, with a rank and busy",
        "Between the first two lines GPUs are free, between the next two they are held and wait. Less there than expected: "
        "GpuMissing.",
        "none",
        Query("sum(trackside_gpus_expected{HERE})", "expected"),
        Query(VISIBLE, "there"),
        Query(f"{ASSIGNED} or {NONE}", "with a rank"),
        Query(BUSY, "busy"),
        width=12,
        least=0,
        links=[link("The GPUs", "trackside-gpus", "instance")],
    )


def _by_run() -> object:
    return _bars(
        "GPU hours by run",
        "Of the fifteen with the most; a GPU of two runs counts for both. " + SAMPLED,
        "h",
        hours(BY_RUN),
    )


def _energy() -> object:
    return _bars(
        "Energy by run",
        "What the GPUs of a run drew while its ranks were on them, of the fifteen with the most. Nodes and cooling come on "
        "top. " + SAMPLED,
        "kwatth",
        f"{hours(WATTS_BY_RUN)} / 1000",
    )


def _bars(title: str, description: str, unit: str, amount: str) -> object:
    made = bars(
        title,
        description,
        unit,
        Query(f"topk(15, {amount})", "{{run}}", instant=True),
        width=6,
        levels=[PLAIN],
        links=[link("This run", "trackside-training", run="${__field.labels.run:percentencode}")],
        empty="no run",
    )
    return made.max_data_points(MOMENTS)
