"""Alerts that no daemon can tell of itself: that it is down, that a run has vanished with it, that it loses something."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.alerts.recording import PLACE

if TYPE_CHECKING:
    from trackside_daemon.alarm import Severity


class Fleet(NamedTuple):
    """One rule, as Prometheus has it."""

    alert: str
    severity: Severity
    expr: str
    lasting: str
    summary: str
    description: str


HERE = "The daemon at {{ $labels.instance }}"


def fleet(job: str) -> list[Fleet]:
    """All of them.

    Args:
        job: The label of the scrape's targets.
    """
    chosen = f"job={json.dumps(job)}"
    return [*_gone(chosen), *_failing(), *_losing()]


def _gone(chosen: str) -> list[Fleet]:
    vanished = f"""\
  max without ({PLACE}, state) (
    last_over_time(trackside_training_state{{state=~"starting|running|stalled"}}[1h]) == 1
  )
unless on (run)
  trackside_training_state"""
    return [
        Fleet(
            "TracksideSidecarDown",
            "warning",
            f"up{{{chosen}}} == 0",
            "5m",
            "A trackside daemon cannot be scraped.",
            "{{ $labels.instance }} of job {{ $labels.job }} has not answered for 5 minutes: the node, the daemon or the "
            "network is down. What it found last is held for 5 minutes, then it is no longer told.",
        ),
        Fleet(
            "TracksideNoTargets",
            "warning",
            f"absent(up{{{chosen}}})",
            "15m",
            "Prometheus has no trackside daemon to scrape.",
            "There is no target of job {{ $labels.job }}: look at the scrape configuration and its discovery.",
        ),
        Fleet(
            "TracksideRunVanished",
            "critical",
            vanished,
            "10m",
            "A run has vanished without an end.",
            "Run {{ $labels.run }} was alive, no daemon has shown it for 10 minutes, and none has seen it end: its nodes are "
            "lost, or the daemons on them. It is told for an hour.",
        ),
    ]


def _failing() -> list[Fleet]:
    return [
        Fleet(
            "TracksideConfigReloadFailed",
            "warning",
            "trackside_config_last_reload_successful == 0",
            "5m",
            "A trackside daemon could not reload its configuration.",
            f"{HERE} goes on with the one before; its log says what is wrong, and so does trackside check-config FILE.",
        ),
        Fleet(
            "TracksideCollectorFailing",
            "warning",
            "trackside_collector_success == 0",
            "10m",
            "A collector of a trackside daemon fails.",
            f"{HERE} has no values of its collector {{{{ $labels.collector }}}}; trackside doctor on that machine says why.",
        ),
        Fleet(
            "TracksideNvmlStuck",
            "warning",
            "trackside_nvml_worker_stuck == 1",
            "5m",
            "The NVIDIA driver does not answer a trackside daemon.",
            f"{HERE} has no values of its GPUs: a call of the driver hangs. Look at dmesg for Xid errors.",
        ),
    ]


def _losing() -> list[Fleet]:
    counted = (
        (
            "TracksideSamplesLost",
            "trackside_pipeline_failures_total",
            "A part of a trackside daemon fails.",
            f"{HERE} lost {{{{ $value | humanize }}}} batches in its {{{{ $labels.stage }}}} in 15 minutes; its log has the "
            "reason.",
        ),
        (
            "TracksidePushesMissing",
            "trackside_ingest_gaps_total",
            "Pushes did not reach a trackside daemon.",
            f"{HERE} misses {{{{ $value | humanize }}}} batches of its clients for good: they were cut off for longer than "
            "they could keep them.",
        ),
        (
            "TracksideSeriesRejected",
            "trackside_series_rejected_total",
            "A trackside daemon leaves series out.",
            f"{HERE} is over its limit of {{{{ $labels.reason }}}}: a training invents keys, or limits.* is too low.",
        ),
        (
            "TracksideAlertsDropped",
            "trackside_alerts_excess_total",
            "A trackside daemon has too many alerts.",
            f"{HERE} did not keep {{{{ $value | humanize }}}} alerts in 15 minutes, since 1,000 others fire.",
        ),
        (
            "TracksideNotificationsFailed",
            "trackside_notifications_failed_total",
            "A trackside daemon cannot tell people.",
            f"{HERE} failed to send by its sink {{{{ $labels.sink }}}}; /api/v1/status has its last error.",
        ),
        (
            "TracksideNotificationsDropped",
            "trackside_notifications_dropped_total",
            "A trackside daemon gave up notifications.",
            f"{HERE} dropped {{{{ $value | humanize }}}} notifications of its sink {{{{ $labels.sink }}}} in 15 minutes.",
        ),
    )
    return [
        Fleet(alert, "warning", f"increase({family}[15m]) > 0", "", summary, description)
        for alert, family, summary, description in counted
    ]
