"""Rules for the processes of a training.

| alert | why this threshold |
|---|---|
| ShmFull | a data loader worker that finds /dev/shm full dies of SIGBUS, so fire at nine tenths of the peak |
| FdsExhausted | at the limit the next file or socket fails, so fire at nine tenths |
| DataLoaderDied | one death is enough: the rank fails at its next batch |

The daemon merges the ranks of a run into one alert, which names the first rank and counts the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.alerts.rules.query import Query
from trackside_daemon.alerts.rules.rule import Rule
from trackside_daemon.model.families import process
from trackside_daemon.model.families import training as f

if TYPE_CHECKING:
    from trackside_daemon.alerts.settings import ThresholdsSection

RANK = ("run", "rank")


def rules(thresholds: ThresholdsSection) -> list[Rule]:
    """Return the rules in the order of the table."""
    return [
        Rule(
            "ShmFull",
            "warning",
            Query(
                f.SHM_PEAK,
                over=Query(f.SHM_SIZE),
                on=RANK,
                by=RANK,
                above=thresholds.shm_ratio,
            ),
            "/dev/shm was {value:percent} full, as rank {rank} of {run} sees it",  # noqa: S108  only named
            keep_firing=60.0,
        ),
        Rule(
            "FdsExhausted",
            "warning",
            Query(
                f.OPEN_FDS,
                over=Query(f.MAX_FDS),
                on=RANK,
                by=RANK,
                above=thresholds.fds_ratio,
            ),
            "rank {rank} of {run} has {value:percent} of its file descriptors open",
            lasting=30.0,
        ),
        Rule(
            "DataLoaderDied",
            "critical",
            Query(
                process.WORKER_DEATHS,
                function="change",
                window=600.0,
                fresh=True,
                by=(*RANK, "cause"),
                above=0.0,
            ),
            "data loader workers of rank {rank} of {run} died: {cause}, {value:whole} in the last {window}",
        ),
    ]
