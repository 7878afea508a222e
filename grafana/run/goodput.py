"""What the time is worth: how much of it is trained in, what the rest is lost to, and checkpoints, of which a restart is made."""

from __future__ import annotations

from grafana.board import Row
from grafana.panels import Query, lines, spread

LOST = "trackside_training_lost_seconds_total"
SAVE = "trackside_training_checkpoint_duration_seconds"


def row() -> Row:
    """Goodput and MFU, then checkpoints."""
    return Row("Goodput and checkpoints", *_worth(), *_checkpoints())


def _worth() -> list[object]:
    every = f"rate({LOST}{{RANK}}[$__rate_interval])"
    done = "rate(trackside_training_model_flops_total{RANK}[$__rate_interval])"
    return [
        lines(
            "Goodput and lost time",
            "Share of the ranks' time in which they train, and what the rest is lost to. A restart is counted at once, with "
            "the time since the attempt before: choose a long range to see what it has cost.",
            "percentunit",
            Query(f"clamp_min(1 - avg(sum without (cause) ({every})), 0)", "goodput"),
            Query(f"avg by (cause) ({every})", "{{cause}}"),
            least=0,
        ),
        lines(
            "Model FLOPs utilization",
            "Operations of the model in a second over what the GPUs could do at most, where the training says its "
            "flops_per_step or parameters. Large language models reach 0.3 to 0.5; far below it the GPUs wait.",
            "percentunit",
            Query(f"sum({done}) / sum(trackside_training_peak_flops_per_second{{RANK}} and {done})", "all ranks"),
            least=0,
        ),
    ]


def _checkpoints() -> list[object]:
    return [
        lines(
            "Time of a checkpoint",
            "How long one took, the mean of all so far. It is lost to training, unless it is written beside it.",
            "s",
            Query(f"sum({SAVE}_sum{{RANK}}) / (sum({SAVE}_count{{RANK}}) > 0)", "mean"),
            least=0,
            width=8,
        ),
        lines(
            "Size of the last checkpoint",
            "Of all ranks together, as they have told. A size that halves may be a checkpoint that was cut short.",
            "bytes",
            Query("sum(trackside_training_checkpoint_bytes{RANK})", "all ranks"),
            least=0,
            width=8,
        ),
        spread(
            "Age of the last checkpoint",
            "What a crash would lose now. CheckpointOverdue says when it is older than twice what is usual.",
            "s",
            "time() - max by (rank) (trackside_training_last_checkpoint_timestamp_seconds{RANK})",
            "rank {{rank}}",
            least=0,
            width=8,
        ),
    ]
