"""The families that a page or an answer of the API makes from others; no rule can name them.

Of runs with many ranks, the statistics replace the series of each rank on /metrics.
"""

from trackside_daemon.model.metric import define

RANK_STATISTIC = define(
    "trackside_training_rank_statistic",
    "Minimum, median, maximum and sum over the ranks of a run with more than limits.ranks; in the family's unit and "
    "without NaN; key has the value of the family's third label.",
    *("run", "family", "key", "statistic"),
)
EXTREME_RANK = define(
    "trackside_training_extreme_rank",
    "Rank with the minimum or the maximum of trackside_training_rank_statistic; absent if all are equal.",
    *("run", "family", "key", "statistic"),
)
# A key of the API alone: `/metrics` has the seconds of each CPU.
CPU_CORE_BUSY = define(
    "trackside_host_cpu_core_busy_ratio", "Share of time that a CPU was busy, from /proc/stat.", "cpu"
)
