"""Where the time goes: phases, and the wait for data with the workers that load it."""

from __future__ import annotations

from grafana.board import Row
from grafana.panels import Query, above, lines, link, spread
from grafana.run.speed import percentiles

from trackside_daemon.alerts.settings import ThresholdsSection

PHASES = "trackside_training_phase_seconds_total"
FIRST = "trackside_training_first_batch_wait_seconds"


def row() -> Row:
    """Phases, then data."""
    return Row("Where the time goes", *_phases(), *_data())


def _phases() -> list[object]:
    data, whole = (
        f"sum by (rank) (rate({PHASES}{{RANK{chosen}}}[$__rate_interval]))" for chosen in (', phase="data"', "")
    )
    return [
        lines(
            "Time by phase",
            "Share of the ranks' time in each phase; they sum to 1, and what is in none is other. A share that grows when the "
            "speed falls is the cause: data is the loader, a collective is waiting for other ranks.",
            "percentunit",
            Query(
                f"sum by (phase) (rate({PHASES}{{RANK}}[$__rate_interval]))"
                f" / scalar(sum(rate({PHASES}{{RANK}}[$__rate_interval])))",
                "{{phase}}",
            ),
            stacked=True,
            least=0,
            most=1,
        ),
        spread(
            "Time spent waiting for data",
            "Share of each rank's time in the phase data, which data() around the loader tells. Above the line for long it is "
            "DataLoaderBottleneck: more workers, cheaper samples, or a faster disk.",
            "percentunit",
            f"{data} / {whole}",
            "rank {{rank}}",
            levels=above(ThresholdsSection().data_wait_ratio),
            least=0,
        ),
    ]


def _data() -> list[object]:
    return [
        lines(
            "Wait for a batch",
            "How long a batch of data was waited for, over all ranks, within the buckets of the histogram; the first of each "
            "epoch is apart. A p99 alone that is high is a slow file, or a worker that is slower than the others.",
            "s",
            *percentiles("trackside_training_data_wait_seconds"),
            least=0,
            width=6,
        ),
        spread(
            "Wait for an epoch's first batch",
            "How long each rank waited for the first batch of an epoch, the start of the workers included: the mean of all so "
            "far. persistent_workers=True of the DataLoader makes all but the first one short.",
            "s",
            f"sum by (rank) ({FIRST}_sum{{RANK}}) / (sum by (rank) ({FIRST}_count{{RANK}}) > 0)",
            "rank {{rank}}",
            least=0,
            width=6,
        ),
        lines(
            "Data loader workers",
            "Workers of all ranks, and those that wait for a device or a file system. Blocked ones while the step waits for "
            "data: the disk or the network is too slow. A fall to fewer workers is DataLoaderDied.",
            "none",
            Query("sum(trackside_dataloader_workers{RANK})", "workers"),
            Query("sum(trackside_dataloader_blocked_workers{RANK})", "blocked"),
            least=0,
            width=6,
            links=[link("Its machines", "trackside-fleet", "run")],
        ),
        spread(
            "Memory of data loader workers",
            "Memory in RAM of each rank's workers together; what they share with it is counted for each. Growth without end "
            "is HostMemoryLeak: data sets that are Python objects are copied as they are read.",
            "bytes",
            "sum by (rank) (trackside_dataloader_resident_memory_bytes{RANK})",
            "rank {{rank}}",
            least=0,
            width=6,
        ),
    ]
