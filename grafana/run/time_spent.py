"""Panels about where the time goes: phases, waiting for data, and data loader workers."""

from __future__ import annotations

from grafana.board import Row
from grafana.panels import Query, above, lines, link, spread
from grafana.run.speed import mean, percentiles

from trackside_daemon.alerts.settings import ThresholdsSection

PHASES = "trackside_training_phase_seconds_total"
FIRST = "trackside_training_first_batch_wait_seconds"
WAIT = "trackside_training_data_wait_seconds"


def row() -> Row:
    """Return the row with phases and data loading."""
    return Row("Where the time goes", *_phases(), *_data())


def _phases() -> list[object]:
    data, total = (
        f"sum by (rank) (rate({PHASES}{{RANK{matcher}}}[$__rate_interval]))" for matcher in (', phase="data"', "")
    )
    return [
        lines(
            "Time by phase",
            "Share of the ranks' time in each phase. The shares sum to 1; time outside any phase is other. A share that grows while "
            "the speed falls is the cause: data is the data loader, a collective is waiting for other ranks.",
            "percentunit",
            Query(
                f"sum by (phase) (rate({PHASES}{{RANK}}[$__rate_interval]))"
                f" / scalar(sum(rate({PHASES}{{RANK}}[$__rate_interval])))",
                "{{phase}}",
            ),
            stacked=True,
            minimum=0,
            maximum=1,
        ),
        spread(
            "Time spent waiting for data",
            "Share of each rank's time in the phase data, which data() around the loader reports. DataLoaderBottleneck fires when it "
            "stays above the line: use more workers, cheaper samples, or a faster disk.",
            "percentunit",
            f"{data} / {total}",
            "rank {{rank}}",
            levels=above(ThresholdsSection().data_wait_ratio),
            minimum=0,
        ),
    ]


def _data() -> list[object]:
    return [
        lines(
            "Wait for a batch",
            "Time spent waiting for a batch of data, over all ranks, without the first batch of each epoch; percentiles need a server "
            "with native histograms. If only p99 is high, a file or a worker is slower than the others.",
            "s",
            *percentiles(WAIT),
            Query(mean(histogram=WAIT), "mean"),
            minimum=0,
            width=6,
        ),
        spread(
            "Wait for an epoch's first batch",
            "Time that each rank waited for the first batch of an epoch, including the start of the workers, as the mean so far. "
            "persistent_workers=True of the DataLoader shortens all but the first.",
            "s",
            f"sum by (rank) ({FIRST}_sum{{RANK}}) / (sum by (rank) ({FIRST}_count{{RANK}}) > 0)",
            "rank {{rank}}",
            minimum=0,
            width=6,
        ),
        lines(
            "Data loader workers",
            "Workers of all ranks, and those that wait for a device or a file system. If workers are blocked while the step waits for "
            "data, the disk or the network is too slow. A fall in the number of workers is DataLoaderDied.",
            "none",
            Query("sum(trackside_dataloader_workers{RANK})", "workers"),
            Query("sum(trackside_dataloader_blocked_workers{RANK})", "blocked"),
            minimum=0,
            width=6,
            links=[link("Machines of this run", "trackside-fleet", "run")],
        ),
        spread(
            "Memory of data loader workers",
            "Resident memory of each rank's workers together; memory shared with the rank counts for each worker. Endless growth "
            "is HostMemoryLeak: data sets made of Python objects are copied as they are read.",
            "bytes",
            "sum by (rank) (trackside_dataloader_resident_memory_bytes{RANK})",
            "rank {{rank}}",
            minimum=0,
            width=6,
        ),
    ]
