"""Panels about the daemons: whether they are up, and what they and their scrapes cost."""

from __future__ import annotations

from grafana.board import Row
from grafana.daemon.collectors import FAILING
from grafana.panels import Column, Query, above, number, rows, spread, states, value_texts

from trackside_daemon.alerts.rules.fleet import STARTS

UP = "up{HERE} and on (CLUSTER, job) last_over_time(trackside_build_info{HERE}[1d])"
"""Only jobs that had daemons within a day; other targets of the same Prometheus are not trackside's."""

OURS = "and on (job, instance) trackside_build_info{HERE}"
STARTED = "process_start_time_seconds{HERE}"
STAT = {"width": 3}


def row() -> Row:
    """Return the first row, with counts, faults and the list of daemons."""
    return Row("Health", *_counts(), *_faults(), _reachable(), _list())


def _counts() -> list[object]:
    return [
        number(
            "Daemons up",
            "Daemons that Prometheus can scrape.",
            "none",
            Query(f"sum({UP})", "up", instant=True),
            **STAT,
        ),
        number(
            "Daemons down",
            "Daemons that Prometheus cannot scrape, because of the machine, the daemon or the network. After five minutes, "
            "TracksideSidecarDown fires. Training continues and keeps its pushes for the next daemon.",
            "none",
            Query(f"sum(({UP}) == bool 0)", "down", instant=True),
            levels=above(1),
            **STAT,
        ),
        number(
            "Versions",
            "Versions of the daemon that run at the same time. If there is more than 1 after a rollout, see the list below.",
            "none",
            Query("count(count by (version) (trackside_build_info{HERE}))", "versions"),
            **STAT,
        ),
        number(
            "Starts in an hour",
            "Starts of the daemon that started most often. Above the threshold, TracksideSidecarRestarting fires; see its service "
            "or its log for the reason.",
            "none",
            Query(f"max(changes({STARTED}[1h]) {OURS})", "starts"),
            levels=above(STARTS + 1),
            **STAT,
        ),
    ]


def _faults() -> list[object]:
    return [
        number(
            "Failing collectors",
            "Collectors that produced values before and do not now. After ten minutes, TracksideCollectorFailing fires; run "
            "`trackside doctor` on that machine for the reason.",
            "none",
            Query(f"sum(({FAILING}) == bool 0)", "failing"),
            levels=above(1),
            **STAT,
        ),
        number(
            "Drivers stuck",
            "Daemons whose NVML process hangs in the driver and cannot be ended. After five minutes, TracksideNvmlStuck fires; "
            "check dmesg for Xid errors.",
            "none",
            Query("sum(trackside_nvml_worker_stuck{HERE})", "stuck"),
            levels=above(1),
            empty="no GPUs",
            **STAT,
        ),
        number(
            "Failed reloads",
            "Daemons that could not load a changed configuration and keep the previous one. After five minutes, "
            "TracksideConfigReloadFailed fires; `trackside check-config FILE` shows the problem.",
            "none",
            Query("sum(trackside_config_last_reload_successful{HERE} == bool 0)", "failed"),
            levels=above(1),
            **STAT,
        ),
        number(
            "Alerts waiting",
            "Alerts not sent yet, in all sinks. If it stays above 0, a sink does not accept them; see Notifications.",
            "none",
            Query("sum(trackside_notifications_queue_length{HERE})", "waiting"),
            **STAT,
        ),
    ]


def _reachable() -> object:
    return states(
        "Reached by Prometheus",
        "When each daemon could be scraped. If one is down, check its machine; if many are, check the rack, a switch or a rollout.",
        Query(UP, "{{instance}}"),
        mappings=value_texts({0: ("down", "orange"), 1: ("up", "green")}),
    )


def _list() -> object:
    return rows(
        "Daemons",
        "Version, last start and last successful configuration load of each daemon that is up.",
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


def resources() -> Row:
    """Return the row about scrapes and the daemons' processes."""
    return Row("Resource use", *_scrapes(), *_processes())


def _scrapes() -> list[object]:
    return [
        spread(
            "Scrape duration",
            "Time that Prometheus waited for a page. Near scrape_timeout, scrapes fail and the daemon appears down: the machine is "
            "overloaded or the page is too large.",
            "s",
            f"scrape_duration_seconds{{HERE}} {OURS}",
            "{{instance}}",
            minimum=0,
        ),
        spread(
            "Scrape size",
            "Series on each page. At sample_limit of the scrape configuration, Prometheus rejects the whole page. The usual cause is "
            "a training script with many keys.",
            "short",
            f"scrape_samples_scraped{{HERE}} {OURS}",
            "{{instance}}",
            minimum=0,
        ),
    ]


def _processes() -> list[object]:
    return [
        spread(
            "CPU time",
            "Share of one CPU that each daemon uses, without its NVML process. More than a few hundredths means very many pushes "
            "or a short --sample.interval.",
            "percentunit",
            f"rate(process_cpu_seconds_total{{HERE}}[$__rate_interval]) {OURS}",
            "{{instance}}",
            minimum=0,
            width=8,
        ),
        spread(
            "Memory",
            "Resident memory of each daemon. It grows with runs, ranks and keys; limits.* bounds it.",
            "bytes",
            f"process_resident_memory_bytes{{HERE}} {OURS}",
            "{{instance}}",
            minimum=0,
            width=8,
        ),
        spread(
            "Open file descriptors",
            "Share of the file descriptors that each daemon may open. It uses one for each process that it watches.",
            "percentunit",
            f"process_open_fds{{HERE}} / process_max_fds{{HERE}} {OURS}",
            "{{instance}}",
            minimum=0,
            maximum=1,
            width=8,
        ),
    ]
