"""Alerts about daemons and runs as a whole, which only Prometheus can raise: a daemon is down, a run has vanished."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.alerts.rules.query import BEGAN, Matcher
from trackside_daemon.alerts.rules.recording import PLACE, attempts
from trackside_daemon.model.families import alerts, daemon, nvml
from trackside_daemon.model.families import training as f

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.model.finding import Severity


class FleetRule(NamedTuple):
    """One alerting rule of Prometheus; ``expr`` is PromQL, ``lasting`` its ``for``, empty for none."""

    alert: str
    severity: Severity
    expr: str
    lasting: str
    summary: str
    description: str


ATTEMPTS = 3  # most attempts of a run in an hour that are normal, as with occasional preemption
STARTS = 3  # most starts of a daemon in an hour that are normal, as with a rollout

HERE = "The daemon at {{ $labels.instance }}"


def fleet(job: str, places: Sequence[str] = PLACE) -> list[FleetRule]:
    """Return all fleet rules.

    Args:
        job: Value of the label ``job`` of the scrape's targets.
        places: Labels that differ between the machines of one run.
    """
    chosen, place = Matcher("job", job).promql(), ", ".join(places)
    return [*_gone(chosen), *_runs(place), *_failing(chosen), *_losing()]


def _gone(chosen: str) -> list[FleetRule]:
    many = f"""\
  count by (job) (up{{{chosen}}} == 0) / count by (job) (up{{{chosen}}}) >= 0.1
and on (job)
  count by (job) (up{{{chosen}}} == 0) >= 3"""
    return [
        FleetRule(
            "TracksideSidecarDown",
            "warning",
            f"up{{{chosen}}} == 0",
            "5m",
            "A trackside daemon cannot be scraped.",
            "{{ $labels.instance }} of job {{ $labels.job }} has not answered for 5 minutes: the node, the daemon or the "
            "network is down. The daemon's last alerts stay active for 20 minutes, then they end. Check the service and its log "
            "on that node.",
        ),
        FleetRule(
            "TracksideNoTargets",
            "warning",
            f"absent(up{{{chosen}}})",
            "15m",
            "Prometheus has no trackside daemon to scrape.",
            "There is no target of job {{ $labels.job }}. Check the scrape configuration and its discovery.",
        ),
        FleetRule(
            "TracksideSidecarsDown",
            "critical",
            many,
            "5m",
            "Many trackside daemons cannot be scraped.",
            "{{ $value | humanizePercentage }} of the daemons of job {{ $labels.job }} have not answered for 5 minutes. Nothing "
            "monitors those machines. Check for a failed rack, switch or rollout, and check the scrape itself.",
        ),
    ]


def _runs(place: str) -> list[FleetRule]:
    # A daemon that is up again reports how its runs ended, so its own series are left out.
    vanished = f"""\
  max without ({place}, state) (
      last_over_time({f.STATE.name}{{state=~"starting|running|stalled"}}[1h]) == 1
    unless on (job, instance)
      up == 1
  )
unless on (run)
  {f.STATE.name}"""
    return [
        FleetRule(
            "TracksideRunVanished",
            "critical",
            vanished,
            "10m",
            "A run has vanished.",
            "Run {{ $labels.run }} was alive, no daemon has shown it for 10 minutes, and no daemon saw it end. Its nodes, or the "
            "daemons on them, are gone. Check whether the nodes answer. This alert ends an hour after the run was last seen.",
        ),
        FleetRule(
            "TracksideRunRestarting",
            "warning",
            f"{attempts(place, '1h')} > {ATTEMPTS}",
            "",
            "A run restarts again and again.",
            "Run {{ $labels.run }} had {{ $value | humanize }} attempts in an hour, and each restart loses the steps since the "
            "last checkpoint. `trackside show {{ $labels.run }}` shows how each attempt ended.",
        ),
    ]


def _failing(chosen: str) -> list[FleetRule]:
    return [
        FleetRule(
            "TracksideSidecarRestarting",
            "warning",
            f"changes({BEGAN}{{{chosen}}}[1h]) > {STARTS}",
            "",
            "A trackside daemon restarts again and again.",
            f"{HERE} was started {{{{ $value | humanize }}}} times in an hour. Its log, its service (systemctl status trackside) or "
            "kubectl describe shows what ends it. Each restart loses a part of what the detectors have learned.",
        ),
        FleetRule(
            "TracksideConfigReloadFailed",
            "warning",
            f"{daemon.RELOADED.name} == 0",
            "5m",
            "A trackside daemon could not reload its configuration.",
            f"{HERE} keeps its previous configuration. Its log and `trackside check-config FILE` show the error.",
        ),
        FleetRule(
            "TracksideCollectorFailing",
            "warning",
            f"  {daemon.COLLECTOR_SUCCESS.name} == 0\nand on (job, instance, collector)\n"
            f"  {daemon.COLLECTOR_LAST_SUCCESS.name}",
            "10m",
            "A collector of a trackside daemon has begun to fail.",
            f"{HERE} has no values from its collector {{{{ $labels.collector }}}}. `trackside doctor` on that machine shows why.",
        ),
        FleetRule(
            "TracksideNvmlStuck",
            "warning",
            f"{nvml.STUCK.name} == 1",
            "5m",
            "The NVIDIA driver does not answer a trackside daemon.",
            f"{HERE} has no values of its GPUs, because a call to the driver hangs. Check dmesg for Xid errors.",
        ),
    ]


def _losing() -> list[FleetRule]:
    counted = (
        (
            "TracksideSamplesLost",
            daemon.PIPELINE_FAILURES,
            "A part of a trackside daemon fails.",
            f"{HERE} lost {{{{ $value | humanize }}}} batches in its stage {{{{ $labels.stage }}}} in 15 minutes. Its log has the reason.",
        ),
        (
            "TracksidePushesMissing",
            daemon.INGEST_GAPS,
            "Pushes did not reach a trackside daemon.",
            f"{HERE} misses {{{{ $value | humanize }}}} batches of the last 15 minutes, and clients no longer have them. Check their spool.",
        ),
        (
            "TracksideSeriesRejected",
            f.SERIES_REJECTED,
            "A trackside daemon omits series.",
            (
                f"{HERE} is over its limit of {{{{ $labels.reason }}}}, and /metrics lacks the rest. The history has all values. "
                "Take numbers out of keys such as loss/step_17, or raise limits.* in its configuration."
            ),
        ),
        (
            "TracksideAlertsDropped",
            alerts.EXCESS,
            "A trackside daemon has too many alerts.",
            f"{HERE} had no room for {{{{ $value | humanize }}}} alerts in 15 minutes, because 1,000 others fire.",
        ),
        (
            "TracksideNotificationsFailed",
            alerts.NOTIFICATIONS_FAILED,
            "A trackside daemon cannot send notifications.",
            f"{HERE} could not send through its sink {{{{ $labels.sink }}}}. /api/v1/status has the last error.",
        ),
        (
            "TracksideNotificationsDropped",
            alerts.NOTIFICATIONS_DROPPED,
            "A trackside daemon gave up notifications.",
            f"{HERE} dropped {{{{ $value | humanize }}}} notifications of its sink {{{{ $labels.sink }}}} in 15 minutes.",
        ),
    )
    return [
        FleetRule(alert, "warning", f"increase({family.name}[15m]) > 0", "", summary, description)
        for alert, family, summary, description in counted
    ]


# Names of all alerts of this module, and of the Watchdog.
NAMES = frozenset({*(rule.alert for rule in fleet("")), "Watchdog"})
