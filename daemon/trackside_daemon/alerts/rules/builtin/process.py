"""What the processes of a training are short of, and what befalls them.

| alert | why this threshold |
|---|---|
| ShmFull | a data loader's worker that finds /dev/shm full dies of SIGBUS: told at nine tenths, by its peak |
| FdsExhausted | at the limit the next file or socket fails: told at nine tenths |
| DataLoaderDied | one is too many: the rank fails at its next batch |

Ranks of a run share what they lack: the daemon makes one alert a run of them, which names the first and counts the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.alerts.rules.query import Query
from trackside_daemon.alerts.rules.rule import Rule

if TYPE_CHECKING:
    from trackside_daemon.alerts.settings import ThresholdsSection

RANK = ("run", "rank")


def rules(thresholds: ThresholdsSection) -> list[Rule]:
    """In the order of the table."""
    return [
        Rule(
            "ShmFull",
            "warning",
            Query(
                "trackside_training_shm_peak_bytes",
                over=Query("trackside_training_shm_size_bytes"),
                on=RANK,
                by=RANK,
                above=thresholds.shm_ratio,
            ),
            "/dev/shm was {value:percent} full, as rank {rank} of {run} sees it",  # noqa: S108  only named
            "Since {since}. Workers that find it full die of SIGBUS: a larger one (docker run --shm-size, an emptyDir of medium "
            "Memory), fewer workers or a smaller prefetch_factor.",
            keep_firing=60.0,
        ),
        Rule(
            "FdsExhausted",
            "warning",
            Query(
                "trackside_training_open_fds",
                over=Query("trackside_training_max_fds"),
                on=RANK,
                by=RANK,
                above=thresholds.fds_ratio,
            ),
            "rank {rank} of {run} has {value:percent} of its file descriptors open",
            "Since {since}. Raise ulimit -n; or files stay open: with many workers, try "
            "torch.multiprocessing.set_sharing_strategy('file_system').",
            lasting=30.0,
        ),
        Rule(
            "DataLoaderDied",
            "critical",
            Query(
                "trackside_dataloader_deaths_total",
                how="change",
                window=600.0,
                fresh=True,
                by=(*RANK, "cause"),
                above=0.0,
            ),
            "data loader workers of rank {rank} of {run} died: {cause}, {value:whole} in the last {window}",
            "Since {since}. After SIGBUS look at /dev/shm, after OOM at the memory limit, else at the worker's own error.",
        ),
    ]
