"""Panels about slow and silent ranks."""

from __future__ import annotations

from grafana.board import Row
from grafana.panels import Query, above, link, spread, states
from grafana.run.speed import mean
from grafana.states import STATE_TEXTS, state
from grafana.stragglers import straggler_ratio

from trackside_daemon.alerts.settings import AlertsSection

PUSHED = "trackside_training_last_step_timestamp_seconds{RANK}"
GPU_OF_RANK_LINK = link("GPU of this rank", "trackside-gpus", "run", rank="${__field.labels.rank:percentencode}")


def row() -> Row:
    """Return the row with slow ranks and silent ranks."""
    return Row("Ranks", *_slow(), *_silent())


def _slow() -> list[object]:
    return [
        spread(
            "Straggler ratio",
            "A rank's own time, without waiting for other ranks, divided by that of the median rank over all machines. All ranks wait "
            "for the slowest: compare its GPU with the others. The line is the threshold of StragglerRank, which compares the ranks "
            "of one machine. Absent for a single rank, or without phases.",
            "short",
            f"max by (rank) ({straggler_ratio('RANK')})",
            "rank {{rank}}",
            levels=above(AlertsSection().thresholds.straggler_ratio),
            links=[GPU_OF_RANK_LINK],
        ),
        spread(
            "Step time by rank",
            "Mean duration of a step. In synchronous training all ranks have the same duration, because they wait for each other; "
            "the straggler ratio then shows the differences.",
            "s",
            mean("by (rank)"),
            "rank {{rank}}",
            minimum=0,
            links=[GPU_OF_RANK_LINK],
        ),
    ]


def _silent() -> list[object]:
    return [
        states(
            "State of each rank",
            "The first rank that left running is the cause; later ones are consequences. `trackside show RUN` shows how each ended, "
            "and stall alerts have the Python stacks. An end is visible for run.linger (60 s), so a chart of days may miss it.",
            Query(state("trackside_training_rank_state{RANK}", "rank"), "rank {{rank}}"),
            mappings=STATE_TEXTS,
            links=[GPU_OF_RANK_LINK],
        ),
        spread(
            "Time since the last push",
            "Time since each rank's last push when its daemon was last scraped. Up to the length of a step is normal. If one rank "
            "rises, RankSilent fires. If all rise beyond the line, and beyond their usual pace and phases, TrainingStalled fires.",
            "s",
            f"min by (rank) (timestamp({PUSHED}) - {PUSHED})",
            "rank {{rank}}",
            levels=above(AlertsSection().stall_after),
            minimum=0,
        ),
    ]
