"""Alerts about daemons and runs as a whole, which only Prometheus can raise: a daemon is down, a run has vanished."""

from typing import NamedTuple

from trackside_daemon.alerts.disabled import DisabledAlerts
from trackside_daemon.alerts.rules.query import BEGAN, DRAINED, POD, TARGETS, Matcher, Targets
from trackside_daemon.alerts.rules.recording import SHORT_LIVED, attempts, runs
from trackside_daemon.model.families import alerts, daemon, host, nvml
from trackside_daemon.model.families import training as f
from trackside_daemon.model.troubles import PREFIX


class FleetRule(NamedTuple):
    """One alerting rule of Prometheus."""

    alert: str  # name of the alert, in the catalogue of troubles, which has its severity and texts
    expr: str  # its condition, in PromQL
    lasting: str  # its ``for``; empty for none
    fact: str  # what is wrong, where and how much, as a template; the next steps follow it
    variant: str = ""  # label that distinguishes rules for the same alert


CERTIFICATE_DAYS = 30  # how long before the certificate's end
ATTEMPTS = 3  # most attempts of a run in an hour that are normal, as with occasional preemption
STARTS = 3  # most starts of a daemon in an hour that are normal, as with a rollout

SAMPLE_LIMIT = 15_000  # sample_limit of each configuration in deploy/prometheus


def fleet(job: str, targets: Targets = TARGETS, disabled: DisabledAlerts | None = None) -> list[FleetRule]:
    """Return all fleet rules, without the runs for which they are off.

    *job* is the value of the label ``job`` of the daemons' targets.
    """
    chosen = Matcher("job", job).promql()
    return [
        *_gone(chosen, targets),
        *_runs(chosen, targets, disabled or DisabledAlerts()),
        *_failing(chosen, targets),
        *_losing(targets),
        *_near_limits(chosen, targets),
    ]


def _here(targets: Targets) -> str:
    return f"The daemon at {targets.machine()}"


def _gone(chosen: str, targets: Targets) -> list[FleetRule]:
    cluster, machine, of_machine = targets.of_cluster("job"), targets.machine(), targets.of_site("job", "instance")
    # A rolling update stops a twentieth of the daemons at a time, each for less than this, and replaces their pods.
    kept, ending = (f'{chosen}, {SHORT_LIVED}{operator}""' for operator in ("=", "!="))
    down = f"(max without ({POD}) (max_over_time(up{{{kept}}}[3m])) == bool 0 unless on ({of_machine}) {DRAINED})"
    many = f"  avg by ({cluster}) {down} >= 0.2\nand on ({cluster})\n  sum by ({cluster}) {down} >= 3"
    flapping = f"  changes(up{{{chosen}}}[15m]) >= 4\nand\n  avg_over_time(up{{{chosen}}}[15m]) < 0.9"
    earlier = " or ".join(f"up{{{kept}}} offset {age}" for age in ("1h", "1d"))
    # Where only sidecars are scraped, there is nothing to scrape while nothing trains.
    once = " or ".join(f"up{{{ending}}} offset {age}" for age in ("1h", "1d", "3d"))
    none = (
        f"  absent(up{{{chosen}}}) unless on () ({once})\nor\n"
        f"  group by ({cluster}) ({earlier}) unless on ({cluster}) up{{{chosen}}}"
    )
    return [
        FleetRule(
            "TracksideSidecarDown",
            f"up{{{chosen}}} == 0",
            "5m",
            f"{machine} of job {{{{ $labels.job }}}} has not answered for 5 minutes: the node, the daemon or the "
            "network is down. The daemon's last alerts stay active for 20 minutes, then they end.",
        ),
        FleetRule(
            "TracksideSidecarDown",
            flapping,
            "",
            f"{machine} of job {{{{ $labels.job }}}} changed {{{{ $value }}}} times between answering "
            "and not answering in 15 minutes.",
            "flapping",
        ),
        FleetRule(
            "TracksideNodeDrained",
            DRAINED,
            "",
            f"{machine} is drained or cordoned: nobody is notified of its alerts, but for those of runs.",
        ),
        FleetRule(
            "TracksideNoTargets", none, "15m", f"There is no target of job {{{{ $labels.job }}}}{targets.text()}."
        ),
        FleetRule(
            "TracksideSidecarsDown",
            many,
            "2m",
            f"{{{{ $value | humanizePercentage }}}} of the daemons of job {{{{ $labels.job }}}}{targets.text()} have not "
            "answered for 5 minutes. Nothing monitors those machines.",
        ),
    ]


def _runs(chosen: str, targets: Targets, disabled: DisabledAlerts) -> list[FleetRule]:
    run = f"Run {{{{ $labels.run }}}}{targets.text('namespace')}"
    machine, ending = targets.of_site("job", "instance"), f'{chosen}, {SHORT_LIVED}!=""'

    def others(alert: str) -> str:
        return "".join(f"{{{matcher.promql()}}}" for matcher in disabled.other_runs(alert))

    # A daemon that is up again reports how its runs ended, so its own series are left out. A sidecar ends with its
    # training, often before the next scrape, and then is no target: only one that is still a target, and down, was lost.
    vanished = f"""\
  {runs(targets.place, "1h", matchers=others("RunVanished"))}
and on ({targets.of_site("job", "run")})
  (
      last_over_time({f.STATE.name}{{state=~"starting|running|stalled"}}[1h]) == 1
    unless on ({machine})
      up{{{chosen}}} == 1
    unless on ({machine})
      (last_over_time(up{{{ending}}}[1h]) unless up{{{ending}}} == 0)
  )
unless on ({targets.of_site("run")})
  {f.STATE.name}"""
    return [
        FleetRule(
            VANISHED,
            vanished,
            "10m",
            f"{run} was alive, no daemon has shown it for 10 minutes, and no daemon saw it end. Its nodes, or the daemons on "
            "them, are gone. If TracksideSidecarsDown fires too, the scrape or its network may be the reason.",
        ),
        FleetRule(
            "TracksideRunRestarting",
            f"{attempts(targets.place, '1h', others('RunRestarting'))} > {ATTEMPTS}",
            "",
            f"{run} had {{{{ $value | humanize }}}} attempts in an hour, and each restart loses the steps since the last "
            "checkpoint.",
        ),
    ]


def _failing(chosen: str, targets: Targets) -> list[FleetRule]:
    here = _here(targets)
    return [
        FleetRule(
            "TracksideSidecarRestarting",
            f"changes({BEGAN}{{{chosen}}}[1h]) > {STARTS}",
            "",
            f"{here} was started {{{{ $value | humanize }}}} times in an hour. Each restart loses a part of what the "
            "detectors have learned.",
        ),
        FleetRule(
            "TracksideConfigReloadFailed",
            f"{daemon.RELOADED.name} == 0",
            "5m",
            f"{here} keeps its previous configuration.",
        ),
        FleetRule(
            "TracksideCertificateExpires",
            f"{daemon.CERTIFICATE_END.name} - time() < {CERTIFICATE_DAYS} * 86400",
            "5m",
            f"{here} has a certificate that is valid for another {{{{ $value | humanizeDuration }}}}.",
        ),
        # A port scan is refused once; a training tries again and again.
        FleetRule(
            "TracksidePushesRejected",
            f"increase({daemon.INGEST_REJECTED.name}[10m]) > 0",
            "20m",
            f"{here} has refused pushes for 20 minutes: {{{{ $labels.reason }}}}.",
        ),
        FleetRule(
            "TracksideCollectorFailing",
            f"  {daemon.COLLECTOR_SUCCESS.name} == 0\nand on ({targets.of_machine('collector')})\n"
            f"  {daemon.COLLECTOR_LAST_SUCCESS.name}",
            "10m",
            f"{here} has no values from its collector {{{{ $labels.collector }}}}.",
        ),
        FleetRule(
            "TracksideNvmlStuck",
            f"{nvml.STUCK.name} == 1",
            "5m",
            f"{here} has no values of its GPUs, because a call to the driver hangs.",
        ),
    ]


def _losing(targets: Targets) -> list[FleetRule]:
    here, more, minutes = _here(targets), "{{ $value | humanize }}", "in 15 minutes"
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
        FleetRule(f"Trackside{alert}", f"increase({family.name}[15m]) > 0", "", f"{here} {fact}.")
        for alert, family, fact in counted
    ]


def _near_limits(chosen: str, targets: Targets) -> list[FleetRule]:
    here, cluster = _here(targets), targets.of_cluster("job")
    versions = f"count by ({targets.of_cluster('job', 'version')}) ({daemon.BUILD_INFO.name})"
    return [
        FleetRule(
            "TracksidePageNearLimit",
            f"scrape_samples_scraped{{{chosen}}} > {0.8 * SAMPLE_LIMIT:.0f}",
            "15m",
            f"{here} has {{{{ $value | humanize }}}} series on its page. At {SAMPLE_LIMIT:,}, Prometheus rejects all of them.",
        ),
        FleetRule(
            "TracksideClockWrong",
            f"{host.TIME_SYNCHRONIZED.name} == 0",
            "15m",
            f"The clock of {targets.machine()} is not synchronized.",
        ),
        FleetRule(
            "TracksideVersionsDiffer",
            f"count by ({cluster}) ({versions}) > 1",
            "2h",
            f"The daemons of job {{{{ $labels.job }}}}{targets.text()} have {{{{ $value }}}} versions, for 2 hours already.",
        ),
        FleetRule(
            "TracksideHistoryFull",
            f"{daemon.HISTORY_EXCESS.name} > 0",
            "1h",
            f"{here} keeps {{{{ $value | humanize1024 }}}}B more than its limit, for runs that are live or pinned.",
        ),
    ]


WATCHDOG = f"{PREFIX}Watchdog"
VANISHED = f"{PREFIX}RunVanished"

# Names of all alerts of this module, and of the one that always fires.
NAMES = frozenset({*(rule.alert for rule in fleet("")), WATCHDOG})
