"""Whether the daemons are there, what they cost, and what a scrape of them costs."""

from __future__ import annotations

from grafana.board import Row
from grafana.own.collectors import FAILING
from grafana.panels import Column, Query, above, number, rows, spread, states, texts

from trackside_daemon.alerts.rules.fleet import STARTS

UP = "up{HERE} and on (job) last_over_time(trackside_build_info{HERE}[1d])"
"""Of the jobs that had daemons within a day: other targets of the same Prometheus are none of ours."""

OURS = "and on (job, instance) trackside_build_info{HERE}"
STARTED = "process_start_time_seconds{HERE}"
STAT = {"width": 3}


def overview() -> Row:
    """The first screen."""
    return Row("Are they well?", *_counts(), *_faults(), _reached(), _list())


def _counts() -> list[object]:
    return [
        number(
            "Daemons up",
            "Daemons that Prometheus reaches.",
            "none",
            Query(f"sum({UP})", "up", instant=True),
            **STAT,
        ),
        number(
            "Daemons down",
            "Daemons that Prometheus does not reach: the machine, the daemon or the network between. After five minutes it is "
            "TracksideSidecarDown. Trainings go on, and keep what they push for the next daemon.",
            "none",
            Query(f"sum(({UP}) == bool 0)", "down", instant=True),
            levels=above(1),
            **STAT,
        ),
        number(
            "Versions",
            "Versions of the daemon that run at once. More than 1 for longer than a rollout: the list below says where.",
            "none",
            Query("count(count by (version) (trackside_build_info{HERE}))", "versions"),
            **STAT,
        ),
        number(
            "Starts in an hour",
            "Of the daemon that was started most often. Beyond the threshold it is TracksideSidecarRestarting: its service or "
            "its log says what ends it.",
            "none",
            Query(f"max(changes({STARTED}[1h]) {OURS})", "starts"),
            levels=above(STARTS + 1),
            **STAT,
        ),
    ]


def _faults() -> list[object]:
    return [
        number(
            "Collectors that fail",
            "Collectors that gave values before and do not now. After ten minutes it is TracksideCollectorFailing: "
            "`trackside doctor` on that machine says why.",
            "none",
            Query(f"sum(({FAILING}) == bool 0)", "fail"),
            levels=above(1),
            **STAT,
        ),
        number(
            "Drivers stuck",
            "Daemons whose process that reads NVML hangs in the driver and cannot be ended. After five minutes it is "
            "TracksideNvmlStuck: look at dmesg for Xid errors.",
            "none",
            Query("sum(trackside_nvml_worker_stuck{HERE})", "stuck"),
            levels=above(1),
            empty="no GPUs",
            **STAT,
        ),
        number(
            "Reloads that failed",
            "Daemons that could not take over a changed configuration, and go on with the one before. After five minutes it is "
            "TracksideConfigReloadFailed: `trackside check-config FILE` says what is wrong.",
            "none",
            Query("sum(trackside_config_last_reload_successful{HERE} == bool 0)", "failed"),
            levels=above(1),
            **STAT,
        ),
        number(
            "Alerts waiting",
            "Alerts that are not told yet, in all sinks. When it stays above 0 a sink does not take them: see Notifications.",
            "none",
            Query("sum(trackside_notifications_queue_length{HERE})", "wait"),
            **STAT,
        ),
    ]


def _reached() -> object:
    return states(
        "Reached by Prometheus",
        "When each daemon could be scraped. One alone is its machine; many at once are a rack, a switch or a rollout.",
        Query(UP, "{{instance}}"),
        mappings=texts({0: ("down", "orange"), 1: ("up", "green")}),
    )


def _list() -> object:
    return rows(
        "Daemons",
        "Version, last start and last good load of the configuration of each daemon that is up.",
        Query("max by (instance, version, python_version) (trackside_build_info{HERE})"),
        Query(f"max by (instance) (1000 * {STARTED} {OURS})"),
        Query("max by (instance) (1000 * trackside_config_last_reload_success_timestamp_seconds{HERE})"),
        columns=[
            Column("instance", "instance"),
            Column("version", "version"),
            Column("python_version", "Python"),
            Column("Value #B", "started", "dateTimeAsLocal"),
            Column("Value #C", "configured", "dateTimeAsLocal"),
        ],
    )


def cost() -> Row:
    """Of scrapes, and of the daemons' processes."""
    return Row("What they cost", *_scrapes(), *_processes())


def _scrapes() -> list[object]:
    return [
        spread(
            "Time of a scrape",
            "How long Prometheus waited for a page, by its own clock. Near scrape_timeout scrapes fail, and the daemon looks "
            "down: the machine is overloaded, or the page too large.",
            "s",
            f"scrape_duration_seconds{{HERE}} {OURS}",
            "{{instance}}",
            least=0,
        ),
        spread(
            "Size of a scrape",
            "Series on each page. At sample_limit of the scrape configuration Prometheus refuses the whole page; many keys of a "
            "training are the usual cause.",
            "short",
            f"scrape_samples_scraped{{HERE}} {OURS}",
            "{{instance}}",
            least=0,
        ),
    ]


def _processes() -> list[object]:
    return [
        spread(
            "CPU time",
            "Share of one CPU that each daemon takes, without its process that reads NVML. More than a few hundredths: very "
            "many pushes, or a short --sample.interval.",
            "percentunit",
            f"rate(process_cpu_seconds_total{{HERE}}[$__rate_interval]) {OURS}",
            "{{instance}}",
            least=0,
            width=8,
        ),
        spread(
            "Memory",
            "Memory in RAM of each daemon. It grows with runs, ranks and keys, and has a bound by limits.*.",
            "bytes",
            f"process_resident_memory_bytes{{HERE}} {OURS}",
            "{{instance}}",
            least=0,
            width=8,
        ),
        spread(
            "Open file descriptors",
            "Share of the descriptors that each daemon may have open. It has one for each process that it watches.",
            "percentunit",
            f"process_open_fds{{HERE}} / process_max_fds{{HERE}} {OURS}",
            "{{instance}}",
            least=0,
            most=1,
            width=8,
        ),
    ]
