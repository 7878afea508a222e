"""What the ranks' processes use of their machines, and what the client does in them."""

from __future__ import annotations

from grafana.board import Row
from grafana.panels import Query, above, lines, link, spread
from grafana.run.joins import of_process

from trackside_daemon.alerts.settings import ThresholdsSection

LIMITS = ThresholdsSection()
CLIENT = "trackside_training_client"


def row() -> Row:
    """Processes and the client."""
    return Row("Processes and client", *_processes(), *_client(), collapsed=True)


def _processes() -> list[object]:
    return [
        spread(
            "Memory of a rank's process",
            "Memory in RAM of each rank's process, without its workers. Growth without end is HostMemoryLeak: outputs kept with "
            "their graph, or lists that grow in the loop.",
            "bytes",
            of_process("trackside_process_resident_memory_bytes{HERE}"),
            "rank {{rank}}",
            least=0,
            width=8,
            links=[link("Its machines", "trackside-fleet", "run")],
        ),
        spread(
            "Open file descriptors",
            "Share of the descriptors that a rank may have open. Above the line it is FdsExhausted: raise ulimit -n; if it only "
            "grows, files are opened and not closed.",
            "percentunit",
            "max by (rank) (trackside_training_open_fds{RANK} / trackside_training_max_fds{RANK})",
            "rank {{rank}}",
            levels=above(LIMITS.fds_ratio),
            least=0,
            most=1,
            width=8,
        ),
        spread(
            "Shared memory",
            "The most that was in use of /dev/shm, as each rank sees it. Above the line it is ShmFull, and workers that find it "
            "full die of SIGBUS: docker run --shm-size, or fewer workers.",
            "percentunit",
            "max by (rank) (trackside_training_shm_peak_bytes{RANK} / trackside_training_shm_size_bytes{RANK})",
            "rank {{rank}}",
            levels=above(LIMITS.shm_ratio),
            least=0,
            most=1,
            width=8,
        ),
    ]


def _client() -> list[object]:
    lost = {"dropped": "dropped", "spooled": "kept on disk", "resent": "sent again"}
    return [
        lines(
            "Pushes per second",
            "Calls of push by all ranks.",
            "short",
            Query(f"sum(rate({CLIENT}_pushes_total{{RANK}}[$__rate_interval]))", "pushes"),
            least=0,
            width=8,
        ),
        lines(
            "Pushes that waited or were lost",
            "Of all ranks: what the client could not keep (MonitorBlind), wrote to disk while no daemon answered, and sent again. "
            "More than a few: see whether the daemon was down, on the dashboard Trackside itself.",
            "none",
            *(
                Query(f"sum(increase({CLIENT}_{name}_total{{RANK}}[$__rate_interval]))", text)
                for name, text in lost.items()
            ),
            least=0,
            width=8,
            links=[link("Trackside itself", "trackside-itself")],
        ),
        spread(
            "CPU time of the client",
            "Share of one CPU that the client's sender takes in each rank. Above a hundredth is a training that pushes very much.",
            "percentunit",
            f"sum by (rank) (rate({CLIENT}_overhead_seconds_total{{RANK}}[$__rate_interval]))",
            "rank {{rank}}",
            least=0,
            width=8,
        ),
    ]
