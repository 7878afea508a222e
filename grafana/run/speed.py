"""Panels about speed: throughput and step duration."""

from __future__ import annotations

from grafana.board import Row
from grafana.panels import Query, heat, lines, link, spread
from grafana.run.many_ranks import total_rate

DURATION = "trackside_training_step_duration_seconds"
PERCENTILES = (0.5, 0.9, 0.99)


def percentiles(histogram: str, otherwise: str = "") -> list[Query]:
    """Return queries for p50, p90 and p99 of a native histogram over the selected ranks; *otherwise* is a family with them.

    Of classic buckets, each twice as wide as the one before, a percentile would be up to twice the duration.
    """
    rate = f"sum by (le) (rate({histogram}{{RANK}}[$__rate_interval]))"

    def query(q: float) -> Query:
        gauge = f' or avg({otherwise}{{RUN, percentile="p{100 * q:g}"}})' if otherwise else ""
        return Query(f"histogram_quantile({q}, {rate}){gauge}", f"p{100 * q:g}")

    return [query(q) for q in PERCENTILES]


def mean(by: str = "", of: str = "RANK", histogram: str = DURATION) -> str:
    """Return a query for the mean of each of *by*, or of all ranks, by default of the steps; empty while there are none."""
    seconds, steps = (f"sum {by} (rate({histogram}_{part}{{{of}}}[$__rate_interval]))" for part in ("sum", "count"))
    return f"{seconds} / ({steps} > 0)"


def row() -> Row:
    """Return the row with throughput and step duration."""
    return Row("Speed", *_throughput(), *_duration())


def _throughput() -> list[object]:
    return [
        lines(
            "Token throughput",
            "Tokens per second over all ranks, if the training script pushes tokens. Gaps during evaluation or checkpoints are "
            "normal. If the level falls, see the row Where the time goes.",
            "short",
            Query(total_rate("trackside_training_tokens_total", "RANK"), "all ranks"),
            minimum=0,
            width=8,
        ),
        lines(
            "Sample throughput",
            "Samples per second over all ranks, if the training script pushes samples.",
            "short",
            Query(total_rate("trackside_training_samples_total", "RANK"), "all ranks"),
            minimum=0,
            width=8,
        ),
        spread(
            "Steps per second by rank",
            "Steps of each rank. In synchronous training all ranks have the same rate. A rank at 0 is silent, and the others will wait.",
            "short",
            "sum by (rank) (rate(trackside_training_steps_total{RANK}[$__rate_interval]))",
            "rank {{rank}}",
            minimum=0,
            width=8,
        ),
    ]


def _duration() -> list[object]:
    return [
        heat(
            "Step time distribution",
            "Rate of steps by duration, over all ranks. Two bands mean two kinds of steps. A thin row far above means an occasional "
            "pause, such as a checkpoint.",
            "s",
            Query(f"sum by (le) (rate({DURATION}_bucket{{RANK}}[$__rate_interval]))", "{{le}}"),
        ),
        lines(
            "Step time mean and percentiles",
            "The mean is exact, percentiles within 5 %. Without native histograms, see docs/prometheus.md, they are the daemon's, "
            "of the last 5 minutes. A p99 far above p50 is SlowStep. A mean that rises and "
            "stays is ThroughputRegression; see the GPUs' clocks and power.",
            "s",
            *percentiles(DURATION, "trackside_training_step_duration_percentile_seconds"),
            Query(mean(), "mean"),
            minimum=0,
            links=[link("GPUs of this run", "trackside-gpus", "run")],
        ),
    ]
