"""How fast it goes: throughput and the duration of steps."""

from __future__ import annotations

from grafana.board import Row
from grafana.panels import Query, heat, lines, link, spread

DURATION = "trackside_training_step_duration_seconds"
PERCENTILES = (0.5, 0.9, 0.99)


def percentiles(histogram: str) -> list[Query]:
    """Queries of p50, p90 and p99 of a histogram over the ranks that are chosen."""
    buckets = f"sum by (le) (rate({histogram}_bucket{{RANK}}[$__rate_interval]))"
    return [Query(f"histogram_quantile({q}, {buckets})", f"p{100 * q:g}") for q in PERCENTILES]


def mean(by: str = "", of: str = "RANK") -> str:
    """A query: the mean duration of a step for each of *by*, or of all; nothing while no steps are made."""
    seconds, steps = (f"sum {by} (rate({DURATION}_{part}{{{of}}}[$__rate_interval]))" for part in ("sum", "count"))
    return f"{seconds} / ({steps} > 0)"


def row() -> Row:
    """Throughput, then the duration of steps."""
    return Row("Speed", *_throughput(), *_duration())


def _throughput() -> list[object]:
    return [
        lines(
            "Throughput in tokens",
            "Tokens that the ranks together train on, where the training pushes tokens. Gaps in step with evaluation or "
            "checkpoints are normal; for a level that falls see where the time goes.",
            "short",
            Query("sum(rate(trackside_training_tokens_total{RANK}[$__rate_interval]))", "all ranks"),
            least=0,
            width=8,
        ),
        lines(
            "Throughput in samples",
            "Samples that the ranks together train on, where the training pushes samples.",
            "short",
            Query("sum(rate(trackside_training_samples_total{RANK}[$__rate_interval]))", "all ranks"),
            least=0,
            width=8,
        ),
        spread(
            "Steps per second by rank",
            "Steps of each rank. In synchronous training all have the same; a rank at 0 is silent, and the others will wait.",
            "short",
            "sum by (rank) (rate(trackside_training_steps_total{RANK}[$__rate_interval]))",
            "rank {{rank}}",
            least=0,
            width=8,
        ),
    ]


def _duration() -> list[object]:
    return [
        heat(
            "Step time: distribution",
            "How many steps a second took how long, over all ranks. Two bands are two kinds of steps; a thin row high above "
            "is a pause that comes now and then, such as a checkpoint.",
            "s",
            Query(f"sum by (le) (rate({DURATION}_bucket{{RANK}}[$__rate_interval]))", "{{le}}"),
        ),
        lines(
            "Step time: mean and percentiles",
            "The mean is exact, the percentiles lie within the buckets of the histogram. p99 far above p50 is SlowStep; a mean "
            "that rises and stays is ThroughputRegression: see clocks and power of the GPUs.",
            "s",
            *percentiles(DURATION),
            Query(mean(), "mean"),
            least=0,
            links=[link("Its GPUs", "trackside-gpus", "run")],
        ),
    ]
