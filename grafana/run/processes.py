"""Panels about the ranks' processes and the client in them."""

from __future__ import annotations

from grafana.board import Row
from grafana.panels import Query, above, lines, link, spread
from grafana.run.joins import of_process
from grafana.run.many_ranks import total_rate

from trackside_daemon.alerts.settings import ThresholdsSection

LIMITS = ThresholdsSection()
CLIENT = "trackside_training_client"


def row() -> Row:
    """Return the row with processes and the client."""
    return Row("Processes and client", *_processes(), *_client(), collapsed=True)


def _processes() -> list[object]:
    return [
        spread(
            "Process memory by rank",
            "Resident memory of each rank's process, without its workers. Endless growth is HostMemoryLeak: outputs that are kept with "
            "their graph, or lists that grow in the loop.",
            "bytes",
            of_process("trackside_process_resident_memory_bytes{HERE}"),
            "rank {{rank}}",
            minimum=0,
            width=8,
            links=[link("Machines of this run", "trackside-fleet", "run")],
        ),
        spread(
            "Open file descriptors",
            "Share of the file descriptors that a rank may open. FdsExhausted fires above the line: raise ulimit -n. If it only "
            "grows, files are opened and not closed.",
            "percentunit",
            "max by (rank) (trackside_training_open_fds{RANK} / trackside_training_max_fds{RANK})",
            "rank {{rank}}",
            levels=above(LIMITS.fds_ratio),
            minimum=0,
            maximum=1,
            width=8,
        ),
        spread(
            "Shared memory",
            "Peak use of /dev/shm, as each rank sees it. ShmFull fires above the line. Workers that find it full die of SIGBUS: use "
            "docker run --shm-size, or fewer workers.",
            "percentunit",
            "max by (rank) (trackside_training_shm_peak_bytes{RANK} / trackside_training_shm_size_bytes{RANK})",
            "rank {{rank}}",
            levels=above(LIMITS.shm_ratio),
            minimum=0,
            maximum=1,
            width=8,
        ),
    ]


def _client() -> list[object]:
    outcomes = {"dropped": "dropped", "spooled": "spooled", "resent": "resent"}
    return [
        lines(
            "Pushes per second",
            "Calls of push over all ranks.",
            "short",
            Query(total_rate(f"{CLIENT}_pushes_total", "RANK"), "pushes"),
            minimum=0,
            width=8,
        ),
        lines(
            "Delayed and lost pushes",
            "Over all ranks: pushes that the client dropped (MonitorBlind), spooled to disk while no daemon answered, and resent. If "
            "there are more than a few, check on the dashboard Itself whether the daemon was down.",
            "none",
            *(
                Query(f"sum(increase({CLIENT}_{name}_total{{RANK}}[$__rate_interval]))", text)
                for name, text in outcomes.items()
            ),
            minimum=0,
            width=8,
            links=[link("Daemons", "trackside-itself")],
        ),
        spread(
            "CPU time of the client",
            "Share of one CPU that the client's sender uses in each rank. Above a hundredth, the training script pushes very much.",
            "percentunit",
            f"sum by (rank) (rate({CLIENT}_overhead_seconds_total{{RANK}}[$__rate_interval]))",
            "rank {{rank}}",
            minimum=0,
            width=8,
        ),
    ]
