"""The overview document, made from the newest values, the firing alerts and a few values from the history."""

import logging
import socket
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from trackside_daemon import __version__
from trackside_daemon.alerts.active_alert import series_labels
from trackside_daemon.alerts.firing_alerts import FiringAlerts
from trackside_daemon.causes.verdict import STOPS, Verdict, read_verdict
from trackside_daemon.history.database import Database
from trackside_daemon.history.read.live_values import sparkline, total_steps
from trackside_daemon.history.read.series import LOSSES
from trackside_daemon.history.record.alert_rows import alert_id
from trackside_daemon.model.families import alerts as alert_families
from trackside_daemon.model.families import gpu as gpu_families
from trackside_daemon.model.families import host, training
from trackside_daemon.model.families import ray as f
from trackside_daemon.model.finding import SEVERITIES
from trackside_daemon.model.metric import json_number
from trackside_daemon.model.records import ENDED, Alert, AlertKey
from trackside_daemon.model.stall import is_quiet, usual_step
from trackside_daemon.model.state import State
from trackside_daemon.web.api.overview import runs
from trackside_daemon.web.api.overview.rates import MAX_POINTS, Attempt, HostRates, RateTracker, SeriesValues
from trackside_daemon.web.api.overview.runs import RunExtras, TwoClocks, VisibleRun

AGAIN_SECONDS = 5.0  # after which a verdict is read again
# The same, for as long after what it comes from has changed: the history has that later than the page.
SOON_SECONDS = 0.9
MAX_ALERTS = 200  # alerts listed in the overview; the counts per run include all

# GPU families, and the labels after `gpu` and `uuid` that select the series.
_GPU_FAMILIES = {
    "utilization_ratio": (),
    "sm_active_ratio": (),
    "memory_used_bytes": (),
    "memory_bytes": (),
    "power_watts": (),
    "power_limit_watts": ("enforced",),
    "temperature_celsius": ("gpu",),
    "clock_hertz": ("sm",),
}

log = logging.getLogger("trackside")


class AlertIds:
    """A cache of the ids that the history assigned to firing alerts."""

    def __init__(self) -> None:
        self._ids: dict[AlertKey, int] = {}

    def without_id(self, alerts: Iterable[Alert]) -> list[Alert]:
        """Return the alerts whose id is not cached, and drop cached ids of all other alerts."""
        keys = {alert.key: alert for alert in alerts}
        self._ids = {key: id_ for key, id_ in self._ids.items() if key in keys}
        return [alert for key, alert in keys.items() if key not in self._ids]

    def read(self, connection: sqlite3.Connection, alerts: Iterable[Alert]) -> None:
        """Read the ids of alerts from the history; an unwritten alert has none yet."""
        for alert in alerts:
            if (id_ := alert_id(connection, alert)) is not None:
                self._ids[alert.key] = id_

    def get(self, alert: Alert) -> int | None:
        """Return an alert's id; None until the history has written it."""
        return self._ids.get(alert.key)


def worst(alerts: Sequence[Alert]) -> list[Alert]:
    """Return at most `MAX_ALERTS`: silenced ones last, else the most severe first, then the most recent."""
    severity_rank: dict[str, int] = {severity: rank for rank, severity in enumerate(SEVERITIES)}

    def order(alert: Alert) -> tuple[bool, int, float]:
        return alert.silenced, -severity_rank.get(alert.severity, 0), -alert.started

    return sorted(alerts, key=order)[:MAX_ALERTS]


def count_by_run(alerts: Iterable[Alert]) -> dict[str, Counter[str]]:
    """Count the alerts without a silence by severity, for each run id."""
    runs: dict[str, Counter[str]] = {}
    for alert in alerts:
        if not alert.silenced:
            runs.setdefault(alert.run, Counter())[alert.severity] += 1
    return runs


def alert_json(alert: Alert, id_: int | None) -> dict[str, Any]:
    """Return an alert as JSON content; absent labels are omitted."""
    values = dict(
        zip(alert_families.FIRING.labels, series_labels(alert.alert, alert.severity, alert.labels), strict=True)
    )
    subject: dict[str, Any] = {name: values[name] for name in ("rank", "key", "gpu", "subject") if values[name]}
    if subject.get("rank", "").isdecimal():
        subject["rank"] = int(subject["rank"])
    return {
        "id": id_,
        "alert": alert.alert,
        "severity": alert.severity,
        **({"run": alert.run, "name": values["run"]} if alert.run else {}),
        **subject,
        "summary": alert.summary,
        "started": alert.started,
        "silenced": alert.silenced,
    }


def ray_json(state: State, now: float) -> dict[str, Any] | None:
    """Return the cluster and the nodes on this machine; None without Ray. *now* is in seconds of the monotonic clock."""
    up, parts, used, sizes, tasks, cluster, nodes, actors, restarts, infos = state.values(
        now, f.UP, f.RESOURCES, f.STORE_USED, f.STORE_SIZE, f.TASKS, f.CLUSTER, f.NODES, f.ACTORS, f.RESTARTS, f.ACTOR
    )
    if not up and not nodes:
        return None
    resources: dict[str, dict[str, dict[str, Any]]] = {}
    for (node, resource, kind), amount in parts.items():
        resources.setdefault(node, {}).setdefault(resource, {})[kind] = amount
    return {
        **{
            name: {labels[0]: value for labels, value in values.items()}
            for name, values in (("cluster", cluster), ("nodes", nodes), ("actors", actors), ("tasks", tasks))
        },
        **without_none(restarts=restarts.get(())),
        "local_nodes": [
            {
                "node": labels[0],
                "up": value == 1.0,
                "resources": resources.get(labels[0], {}),
                **without_none(store_used_bytes=used.get(labels), store_bytes=sizes.get(labels)),
            }
            for labels, value in sorted(up.items())
        ],
        "local_actors": [dict(zip(f.ACTOR.labels, labels, strict=True)) for labels in sorted(infos)],
    }


def host_json(state: State, now: float, name: str, rates: HostRates) -> dict[str, Any]:
    """Return the host's values; *now* is in seconds of the monotonic clock."""
    memory, available = host.MEMORY, host.MEMORY_AVAILABLE
    *numbers, sizes, free_bytes = state.values(
        now, host.CPUS, memory, available, host.SWAP_USED, host.FILESYSTEM_SIZE, host.FILESYSTEM_AVAIL
    )
    cpus, total_bytes, available_bytes, swap_bytes = (next(iter(series.values()), None) for series in numbers)
    return {
        "name": name,
        **without_none(
            cpus=cpus,
            cpu_ratio=rates.cpu_ratio,
            memory_bytes=total_bytes,
            memory_available_bytes=available_bytes,
            swap_used_bytes=swap_bytes,
        ),
        "disks": [
            {"mountpoint": labels[0], **without_none(size_bytes=size, avail_bytes=free_bytes.get(labels))}
            for labels, size in sizes.items()
        ],
        **without_none(receive_bytes_per_second=rates.receive, transmit_bytes_per_second=rates.transmit),
    }


def gpus_json(state: State, now: float, run_ids: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the values of each GPU in numeric order; *run_ids* are by run name."""
    metrics = [gpu_families.FAMILIES[family].metric for family in _GPU_FAMILIES]
    up, limits = gpu_families.UP, gpu_families.CLOCK_LIMIT_ACTIVE
    infos, ups, limited, ranks, *numbers = state.values(
        now, gpu_families.INFO, up, limits, gpu_families.RANK_INFO, *metrics
    )
    names = {labels[:2]: labels[gpu_families.INFO.labels.index("name")] for labels in infos}
    return [
        {
            "gpu": gpu,
            "uuid": uuid,
            **({"name": name} if (name := names.get((gpu, uuid))) else {}),
            "up": ups.get((gpu, uuid)) == 1.0,
            **without_none(
                **{
                    key: series.get((gpu, uuid, *_GPU_FAMILIES[key]))
                    for key, series in zip(_GPU_FAMILIES, numbers, strict=True)
                }
            ),
            "limited": _limit_reasons((gpu, uuid), limited),
            "ranks": [
                {"run": run_ids.get(run, run), "name": run, "rank": int(rank)}
                for *device, run, rank in ranks
                if device == [gpu, uuid]
            ],
        }
        for gpu, uuid in sorted({*names, *ups}, key=_gpu_order)
    ]


def _gpu_order(gpu: tuple[str, ...]) -> tuple[bool, str, str]:
    """Return a sort key that orders numbered GPUs by their number, in front of all others."""
    number, uuid = gpu
    return not number.isdecimal(), number.zfill(8), uuid


def _limit_reasons(gpu: tuple[str, str], limited: SeriesValues) -> list[str]:
    """Return the reasons that limit a GPU's clocks, except that it is idle."""
    return [
        labels[-1]
        for labels, value in limited.items()
        if labels[:2] == gpu and value == 1.0 and labels[-1] != "gpu_idle"
    ]


def without_none(**values: object) -> dict[str, float | str]:
    """Return the values that are not None, as JSON can hold them."""
    return {name: json_number(cast("float", value)) for name, value in values.items() if value is not None}


class Overview:
    """Builds the overview, in any thread. When the history cannot be read, its values are missing.

    Args:
        state: The newest value of every series.
        rates: Rates and loss curves.
        firing: The firing alerts.
        database: The history.

    Attributes:
        build_count: Number of calls of `build`.
    """

    def __init__(
        self, state: State, rates: RateTracker, firing: FiringAlerts, database: Database, *, fleet: bool = False
    ) -> None:
        self.build_count = 0
        self._fleet = fleet
        self._state = state
        self._rates = rates
        self._firing = firing
        self._database = database
        self._host = socket.gethostname()
        self._lock = threading.Lock()
        self._alert_ids = AlertIds()
        self._total_steps: dict[Attempt, int] = {}
        self._verdicts: dict[Attempt, tuple[float, float, object, Verdict]] = {}
        self._unreadable = False

    def build(self) -> dict[str, Any]:
        """Return the overview as of now, as JSON content."""
        now = TwoClocks(time.monotonic(), time.time())
        # The API and the stream build in threads of a pool, and both change the caches.
        with self._lock:
            self.build_count += 1
            all_firing = self._firing.now()
            firing = worst(all_firing)
            visible = runs.visible_runs(self._state, now)
            self._rates.register((run.attempt for run in visible), now.monotonic)
            self._total_steps = {run.attempt: total for run in visible if (total := self._total_steps.get(run.attempt))}
            self._read_history(visible, firing)
            self._read_verdicts(now, visible, all_firing)
            counts = count_by_run(all_firing)
            run_ids = {run.name: run.attempt[0] for run in visible}
            return {
                "time": now.wall,
                "version": __version__,
                "host": host_json(self._state, now.monotonic, self._host, self._rates.host_rates()),
                "gpus": gpus_json(self._state, now.monotonic, run_ids),
                "fleet": self._fleet,
                "ray": ray_json(self._state, now.monotonic),
                "runs": [self._run_json(now, run, counts.get(run.attempt[0], {})) for run in visible],
                "alerts": [alert_json(alert, self._alert_ids.get(alert)) for alert in firing],
            }

    def _run_json(self, now: TwoClocks, run: VisibleRun, counts: Mapping[str, int]) -> dict[str, Any]:
        verdict = self._verdicts[run.attempt][-1] if run.attempt in self._verdicts else Verdict()
        extras = RunExtras(self._total_steps.get(run.attempt), counts, verdict)
        return runs.run_json(self._state, now, run, self._rates, extras)

    def _read_verdicts(self, now: TwoClocks, visible: Sequence[VisibleRun], firing: Iterable[Alert]) -> None:
        """Read what stops the runs that failed, have an alert that says so, or have been quiet for longer than usual."""
        stopped: dict[str, list[object]] = {}
        for alert in firing:
            if alert.alert in STOPS:
                hang = alert.evidence.get("hang", {}).get("text")
                stopped.setdefault(alert.run, []).append((alert.alert, alert.started, alert.summary, hang))
        before, self._verdicts = self._verdicts, {}
        (durations,) = self._state.values(now.monotonic, training.STEP_DURATION)
        for run in visible:
            last = max(run.ranks[runs.GAUGES.index(training.LAST_STEP)].values(), default=now.wall)
            quiet = run.state not in ENDED and is_quiet(now.wall - last, usual_step(durations, run.name))
            key = run.state, stopped.get(run.attempt[0]), quiet
            if not (run.state in {"failed", "lost", "stopped"} or any(key[1:])):
                continue
            at, changed, same, verdict = before.get(run.attempt, (0.0, 0.0, None, Verdict()))
            changed = changed if same == key else now.monotonic
            again = SOON_SECONDS if now.monotonic - changed < AGAIN_SECONDS else AGAIN_SECONDS
            if same != key or now.monotonic - at >= again:
                with suppress(sqlite3.Error, ValueError, LookupError), self._database.reading() as connection:
                    at, verdict = now.monotonic, read_verdict(connection, run.attempt[0])
            self._verdicts[run.attempt] = at, changed, key, verdict

    def _read_history(self, visible: list[VisibleRun], firing: list[Alert]) -> None:
        """Read missing values from the history: alert ids, total steps, and losses from before this daemon."""
        progress = runs.GAUGES.index(runs.PROGRESS)
        without_total = [run.attempt for run in visible if run.ranks[progress] and run.attempt not in self._total_steps]
        without_curve = [run for run in visible if self._rates.needs_history(run.attempt)]
        without_id = self._alert_ids.without_id(firing)
        if not (without_total or without_curve or without_id):
            return
        try:
            with self._database.reading() as connection:
                self._alert_ids.read(connection, without_id)
                for attempt in without_total:
                    if (total := total_steps(connection, *attempt)) is not None:
                        self._total_steps[attempt] = total
                for run in without_curve:
                    self._read_loss_curve(connection, run)
            self._unreadable = False
        except (sqlite3.Error, ValueError) as error:
            if not self._unreadable:
                log.warning("%s cannot be read: %s", self._database.path, error)
            self._unreadable = True

    def _read_loss_curve(self, connection: sqlite3.Connection, run: VisibleRun) -> None:
        rank = min(run.ranks[runs.GAUGES.index(runs.LOSS)] or run.ranks[0], default=0)
        self._rates.add_history(run.attempt, sparkline(connection, (*run.attempt, rank), LOSSES, MAX_POINTS))
