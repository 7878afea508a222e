"""Rank by rank: who is slow, and who is silent."""

from __future__ import annotations

from grafana.board import Row
from grafana.panels import Query, above, link, spread, states
from grafana.run.speed import mean
from grafana.states import STATE_TEXTS, state
from grafana.stragglers import straggling

from trackside_daemon.alerts.settings import AlertsSection

PUSHED = "trackside_training_last_step_timestamp_seconds{RANK}"
ITS_GPU = link("Its GPU", "trackside-gpus", "run", rank="${__field.labels.rank:percentencode}")


def row() -> Row:
    """Slowness above, silence below."""
    return Row("Ranks", *_slow(), *_silent())


def _slow() -> list[object]:
    return [
        spread(
            "Straggler ratio",
            "A rank's own time, in which it waits for nobody, over the median rank's on all machines. All wait for the slowest: "
            "compare its GPU with the others'. The line is StragglerRank's, which compares the ranks of one machine. Absent "
            "for one rank, or without phases.",
            "short",
            f"max by (rank) ({straggling('RANK')})",
            "rank {{rank}}",
            levels=above(AlertsSection().thresholds.straggler_ratio),
            links=[ITS_GPU],
        ),
        spread(
            "Step time by rank",
            "Mean duration of a step. In synchronous training it is the same for all, as they wait for each other: then the "
            "straggler ratio tells them apart.",
            "s",
            mean("by (rank)"),
            "rank {{rank}}",
            least=0,
            links=[ITS_GPU],
        ),
    ]


def _silent() -> list[object]:
    return [
        states(
            "State of each rank",
            "The first that left running is the cause, those after it are consequences. `trackside show RUN` has how each "
            "ended, and alerts of stalls have the Python stacks. An end is here for run.linger, 60 s: a chart of days may miss it.",
            Query(state("trackside_training_rank_state{RANK}", "rank"), "rank {{rank}}"),
            mappings=STATE_TEXTS,
            links=[ITS_GPU],
        ),
        spread(
            "Time since the last push",
            "How long ago each rank had pushed when its daemon was last scraped: up to a step's length is normal. A rank that "
            "rises alone is RankSilent; when all rise beyond the line, and beyond their own pace and phases, TrainingStalled.",
            "s",
            f"min by (rank) (timestamp({PUSHED}) - {PUSHED})",
            "rank {{rank}}",
            levels=above(AlertsSection().stall_after),
            least=0,
        ),
    ]
