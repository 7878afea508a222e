"""Panels about the alerts of all nodes."""

from __future__ import annotations

from grafana.board import Row
from grafana.panels import ZERO_IF_UP, Query, above, bars, lines, link
from grafana.states import SEVERITIES, SEVERITY_TEXTS, severity
from grafana.tables import Text, Value, joined_table

FIRING = "trackside_alert_firing{HERE, run=~`(${run:regex})?`}"
"""Alerts of the selected runs, and of nodes and GPUs, which have no run. VictoriaMetrics 1.79 reads ``.+|`` as ``.+``."""

STARTED = "trackside_alerts_total{HERE, run=~`(${run:regex})?`}"
MAX_ROWS = 200
"""Rows of the table."""


def row() -> Row:
    """Return the row with firing alerts above their history."""
    return Row("Alerts", _firing(), _over_time(), _started())


def _firing() -> object:
    labels = "alert, run, rank, instance, gpu, key, subject"
    run = [link("This run", "trackside-training", run="${__value.raw:percentencode}")]
    node = [link("GPUs of this node", "trackside-gpus", instance="${__value.raw:percentencode}")]
    return joined_table(
        "Firing",
        "Firing alerts, the worst first. docs/alerts.md explains each alert and what to do. `trackside alerts show NAME` on the node "
        "shows its evidence.",
        [
            Text("Alert", "alert"),
            Text("Run", "run", run),
            Text("Rank", "rank"),
            Text("Node", "instance", node),
            Text("GPU", "gpu"),
            Text("Key", "key"),
            Text("Subject", "subject"),
        ],
        [Value("Severity", f"topk({MAX_ROWS}, {severity(FIRING, labels)} > 0)", mappings=SEVERITY_TEXTS)],
        sort="Severity",
        width=24,
        height=9,
        empty="no firing alerts",
    )


def _over_time() -> object:
    counts = (Query(f'sum({FIRING[:-1]}, severity="{name}"}}) or {ZERO_IF_UP}', name) for name in reversed(SEVERITIES))
    return lines(
        "Firing alerts by severity",
        "How many alerts fired when. If many fire at once, they usually have one cause: read the oldest critical one first.",
        "none",
        *counts,
        colors=SEVERITIES,
        stacked=True,
        minimum=0,
    )


def _started() -> object:
    """Return the panel of alerts that started; `increase` misses the first time, which creates the series."""
    increase = f"increase({STARTED}[$__range])"
    new_series = f"{increase} unless increase({STARTED}[$__rate_interval] offset $__range)"
    return bars(
        "Alerts started",
        "How often alerts started to fire in the displayed time, the fifteen most frequent. If one comes and goes, fix its cause or "
        "change its threshold.",
        "none",
        Query(
            f"topk(15, sum by (alert, severity) (({new_series}) + 1 or {increase}) > 0)",
            "{{alert}}, {{severity}}",
            instant=True,
        ),
        decimals=0,
        levels=above(1, "blue"),
        empty="none",
    )
