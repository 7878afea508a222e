"""Alerts that no daemon can tell of itself: that it is down, that a run has vanished with it, that it loses something."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.alerts.rules.query import BEGAN
from trackside_daemon.alerts.rules.recording import PLACE, attempts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.model.finding import Severity


class Fleet(NamedTuple):
    """One rule, as Prometheus has it."""

    alert: str
    severity: Severity
    expr: str
    lasting: str
    summary: str
    description: str


ATTEMPTS = 3
"""More attempts of a run in an hour are too many: one that is preempted now and then has fewer."""

STARTS = 3
"""More starts of a daemon in an hour are no rollout."""

HERE = "The daemon at {{ $labels.instance }}"


def fleet(job: str, places: Sequence[str] = PLACE) -> list[Fleet]:
    """All of them.

    Args:
        job: The label of the scrape's targets.
        places: The labels that a run goes beyond.
    """
    chosen, place = f"job={json.dumps(job)}", ", ".join(places)
    return [*_gone(chosen), *_runs(place), *_failing(chosen), *_losing()]


def _gone(chosen: str) -> list[Fleet]:
    many = f"""\
  count by (job) (up{{{chosen}}} == 0) / count by (job) (up{{{chosen}}}) >= 0.1
and on (job)
  count by (job) (up{{{chosen}}} == 0) >= 3"""
    return [
        Fleet(
            "TracksideSidecarDown",
            "warning",
            f"up{{{chosen}}} == 0",
            "5m",
            "A trackside daemon cannot be scraped.",
            "{{ $labels.instance }} of job {{ $labels.job }} has not answered for 5 minutes: the node, the daemon or the "
            "network is down. What it found last is held for 20 minutes, then it is no longer told.",
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
            "TracksideSidecarsDown",
            "critical",
            many,
            "5m",
            "Many trackside daemons cannot be scraped.",
            "{{ $value | humanizePercentage }} of the daemons of job {{ $labels.job }} have not answered for 5 minutes: a rack, "
            "a switch, a rollout or the scrape itself. On those machines nothing is watched.",
        ),
    ]


def _runs(place: str) -> list[Fleet]:
    """A machine that is back says itself what became of its runs, so that those are not looked for."""
    vanished = f"""\
  max without ({place}, state) (
      last_over_time(trackside_training_state{{state=~"starting|running|stalled"}}[1h]) == 1
    unless on (job, instance)
      up == 1
  )
unless on (run)
  trackside_training_state"""
    return [
        Fleet(
            "TracksideRunVanished",
            "critical",
            vanished,
            "10m",
            "A run has vanished without an end.",
            "Run {{ $labels.run }} was alive, no daemon has shown it for 10 minutes, and none has seen it end: its nodes are "
            "lost, or the daemons on them. It is told for an hour.",
        ),
        Fleet(
            "TracksideRunRestarting",
            "warning",
            f"{attempts(place, '1h')} > {ATTEMPTS}",
            "",
            "A run is restarted again and again.",
            "Run {{ $labels.run }} had {{ $value | humanize }} attempts in an hour: each dies of the same cause, which trackside "
            "show {{ $labels.run }} has, and the steps since its last checkpoint are lost each time.",
        ),
    ]


def _failing(chosen: str) -> list[Fleet]:
    return [
        Fleet(
            "TracksideSidecarRestarting",
            "warning",
            f"changes({BEGAN}{{{chosen}}}[1h]) > {STARTS}",
            "",
            "A trackside daemon is started again and again.",
            f"{HERE} was started {{{{ $value | humanize }}}} times in an hour: its log, its service (systemctl status trackside) "
            "or kubectl describe says what ends it. What detectors learnt is lost each time in part.",
        ),
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
            "  trackside_collector_success == 0\nand on (job, instance, collector)\n"
            "  trackside_collector_last_success_timestamp_seconds",
            "10m",
            "A collector of a trackside daemon fails that did not before.",
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
            f"{HERE} lost {{{{ $value | humanize }}}} batches in its {{{{ $labels.stage }}}}; its log has the reason.",
        ),
        (
            "TracksidePushesMissing",
            "trackside_ingest_gaps_total",
            "Pushes did not reach a trackside daemon.",
            f"{HERE} misses {{{{ $value | humanize }}}} batches for good: clients could not keep them for so long.",
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


NAMES = frozenset({*(one.alert for one in fleet("")), "Watchdog"})
"""What is told of daemons and runs as a whole."""
