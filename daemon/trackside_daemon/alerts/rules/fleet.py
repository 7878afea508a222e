"""Alerts about daemons and runs as a whole, which only Prometheus can raise: a daemon is down, a run has vanished."""

from collections.abc import Sequence
from typing import NamedTuple

from trackside_daemon.alerts.rules.query import BEGAN, Matcher
from trackside_daemon.alerts.rules.recording import PLACE, attempts
from trackside_daemon.model.families import alerts, daemon, nvml
from trackside_daemon.model.families import training as f


class FleetRule(NamedTuple):
    """One alerting rule of Prometheus.

    Attributes:
        alert: Name of the alert, in the catalogue of troubles, which has its severity and texts.
        expr: Its condition, in PromQL.
        lasting: Its ``for``; empty for none.
        fact: What is wrong, where and how much, as a template; the next steps follow it.
    """

    alert: str
    expr: str
    lasting: str
    fact: str


CERTIFICATE_DAYS = 30  # how long before the certificate's end
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
            f"up{{{chosen}}} == 0",
            "5m",
            "{{ $labels.instance }} of job {{ $labels.job }} has not answered for 5 minutes: the node, the daemon or the "
            "network is down. The daemon's last alerts stay active for 20 minutes, then they end.",
        ),
        FleetRule(
            "TracksideNoTargets",
            f"absent(up{{{chosen}}})",
            "15m",
            "There is no target of job {{ $labels.job }}.",
        ),
        FleetRule(
            "TracksideSidecarsDown",
            many,
            "5m",
            "{{ $value | humanizePercentage }} of the daemons of job {{ $labels.job }} have not answered for 5 minutes. Nothing "
            "monitors those machines.",
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
            vanished,
            "10m",
            "Run {{ $labels.run }} was alive, no daemon has shown it for 10 minutes, and no daemon saw it end. Its nodes, or the "
            "daemons on them, are gone.",
        ),
        FleetRule(
            "TracksideRunRestarting",
            f"{attempts(place, '1h')} > {ATTEMPTS}",
            "",
            "Run {{ $labels.run }} had {{ $value | humanize }} attempts in an hour, and each restart loses the steps since the "
            "last checkpoint.",
        ),
    ]


def _failing(chosen: str) -> list[FleetRule]:
    return [
        FleetRule(
            "TracksideSidecarRestarting",
            f"changes({BEGAN}{{{chosen}}}[1h]) > {STARTS}",
            "",
            f"{HERE} was started {{{{ $value | humanize }}}} times in an hour. Each restart loses a part of what the "
            "detectors have learned.",
        ),
        FleetRule(
            "TracksideConfigReloadFailed",
            f"{daemon.RELOADED.name} == 0",
            "5m",
            f"{HERE} keeps its previous configuration.",
        ),
        FleetRule(
            "TracksideCertificateExpires",
            f"{daemon.CERTIFICATE_END.name} - time() < {CERTIFICATE_DAYS} * 86400",
            "5m",
            "The certificate of the daemon at {{ $labels.instance }} is valid for another {{ $value | humanizeDuration }}.",
        ),
        # A port scan is refused once; a training tries again and again.
        FleetRule(
            "TracksidePushesRejected",
            f"increase({daemon.INGEST_REJECTED.name}[10m]) > 0",
            "20m",
            f"{HERE} has refused pushes for 20 minutes: {{{{ $labels.reason }}}}.",
        ),
        FleetRule(
            "TracksideCollectorFailing",
            f"  {daemon.COLLECTOR_SUCCESS.name} == 0\nand on (job, instance, collector)\n"
            f"  {daemon.COLLECTOR_LAST_SUCCESS.name}",
            "10m",
            f"{HERE} has no values from its collector {{{{ $labels.collector }}}}.",
        ),
        FleetRule(
            "TracksideNvmlStuck",
            f"{nvml.STUCK.name} == 1",
            "5m",
            f"{HERE} has no values of its GPUs, because a call to the driver hangs.",
        ),
    ]


def _losing() -> list[FleetRule]:
    more, minutes = "{{ $value | humanize }}", "in 15 minutes"
    counted = (
        (
            "SamplesLost",
            daemon.PIPELINE_FAILURES,
            f"lost {more} batches in its stage {{{{ $labels.stage }}}} {minutes}",
        ),
        (
            "PushesMissing",
            daemon.INGEST_GAPS,
            f"misses {more} batches of the last 15 minutes, and clients no longer have them",
        ),
        (
            "SeriesRejected",
            f.SERIES_REJECTED,
            "is over its limit of {{ $labels.reason }}, and /metrics lacks the rest. The history has all values",
        ),
        ("AlertsDropped", alerts.EXCESS, f"had no room for {more} alerts {minutes}, because 1,000 others fire"),
        ("NotificationsFailed", alerts.NOTIFICATIONS_FAILED, "could not send through its sink {{ $labels.sink }}"),
        (
            "NotificationsDropped",
            alerts.NOTIFICATIONS_DROPPED,
            f"dropped {more} notifications of its sink {{{{ $labels.sink }}}} {minutes}",
        ),
    )
    return [
        FleetRule(f"Trackside{alert}", f"increase({family.name}[15m]) > 0", "", f"{HERE} {fact}.")
        for alert, family, fact in counted
    ]


# Names of all alerts of this module, and of the Watchdog.
NAMES = frozenset({*(rule.alert for rule in fleet("")), "Watchdog"})
