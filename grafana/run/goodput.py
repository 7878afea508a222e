"""Panels about goodput, lost time and checkpoints."""

from __future__ import annotations

from grafana.board import Row
from grafana.panels import Query, below, lines, spread
from grafana.stragglers import own_time

LOST = "trackside_training_lost_seconds_total"
SAVE = "trackside_training_checkpoint_duration_seconds"


def row() -> Row:
    """Return the row with goodput, MFU and checkpoints."""
    return Row("Goodput and checkpoints", *_goodput(), *_checkpoints())


def _goodput() -> list[object]:
    lost = f"rate({LOST}{{RANK}}[$__rate_interval])"
    waits = f"max({own_time('RANK')}) - avg({own_time('RANK')})"
    running = 'trackside_training_rank_state{RANK, state="running"} == 1'
    flops = "rate(trackside_training_model_flops_total{RANK}[$__rate_interval])"
    return [
        lines(
            "Ledger of time",
            "Shares of the ranks' time: what was lost by cause, the mean wait for the slowest rank, by the phases in which ranks wait for "
            "no other, and the rest, in which are throttled clocks and steps after NaN too. A restart counts at once, with the time "
            "since the previous attempt; select a long range to see its cost. `trackside_training_goodput_ratio` is the share of useful "
            "compute in the whole run, and `trackside why` has its ledger.",
            "percentunit",
            Query(
                f"clamp_min(1 - (sum(avg by (cause) ({lost})) or vector(0)) - ({waits} or vector(0)), 0) and on () ({running})",
                "the rest",
            ),
            Query(f"avg by (cause) ({lost})", "{{cause}}"),
            Query(waits, "wait for the slowest rank"),
            stacked=True,
            minimum=0,
            maximum=1,
        ),
        lines(
            "Model FLOPs utilization",
            "FLOPs of the model per second divided by the GPUs' peak, if the training script reports its flops_per_step or "
            "parameters. Large language models reach 0.3 to 0.5; far below that, the GPUs wait.",
            "percentunit",
            Query(f"sum({flops}) / sum(trackside_training_peak_flops_per_second{{RANK}} and {flops})", "all ranks"),
            minimum=0,
        ),
    ]


def _checkpoints() -> list[object]:
    return [
        lines(
            "Checkpoint duration",
            "Mean duration of all checkpoints so far. This time is lost to training unless checkpoints are written in the background.",
            "s",
            Query(f"sum({SAVE}_sum{{RANK}}) / (sum({SAVE}_count{{RANK}}) > 0)", "mean"),
            minimum=0,
            width=8,
        ),
        lines(
            "Size of the last checkpoint",
            "Size over all ranks, as they reported it. If it halves, the checkpoint may be incomplete.",
            "bytes",
            Query("sum(trackside_training_checkpoint_bytes{RANK})", "all ranks"),
            minimum=0,
            width=8,
        ),
        spread(
            "Age of the last checkpoint",
            "Time that a crash would lose now. CheckpointOverdue fires when it is more than twice the usual interval.",
            "s",
            "time() - max by (rank) (trackside_training_last_checkpoint_timestamp_seconds{RANK})",
            "rank {{rank}}",
            minimum=0,
            width=8,
        ),
        lines(
            "Age of the last good checkpoint",
            "Time since the newest checkpoint that an audit has found intact. If it is much older than the last checkpoint, that one is "
            "damaged or not read yet.",
            "s",
            Query("time() - max(trackside_training_last_good_checkpoint_timestamp_seconds{RUN})", "age"),
            minimum=0,
            width=8,
        ),
        lines(
            "Checkpoints on disk",
            "Checkpoints by what the audits found. A damaged one raises CheckpointDamaged.",
            "short",
            Query("max by (state) (trackside_training_stored_checkpoints{RUN})", "{{state}}"),
            minimum=0,
            width=8,
        ),
        lines(
            "Room for the next checkpoint",
            "Free space of the directory over the size of the next checkpoint. Below 100 % it does not fit, and DiskFilling fires.",
            "percentunit",
            Query("min by (directory) (trackside_training_checkpoint_room_ratio{RUN})", "{{directory}}"),
            levels=below(1, "red"),
            minimum=0,
            width=8,
        ),
    ]
