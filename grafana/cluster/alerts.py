"""What fires on all nodes, and what has begun to."""

from __future__ import annotations

from grafana.board import Row
from grafana.panels import NONE, Query, above, bars, lines, link
from grafana.states import SEVERITIES, SEVERITY_TEXTS, severity
from grafana.tables import Text, Value, joined
from grafana_foundation_sdk.models import dashboard as models

FIRING = "trackside_alert_firing{HERE, run=~`(${run:regex})?`}"
"""Of the chosen runs, and of nodes and GPUs, which have no run. VictoriaMetrics 1.79 takes ``.+|`` for ``.+``, but not this."""

BEGUN = "trackside_alerts_total{HERE, run=~`(${run:regex})?`}"
MOST = 200
"""More rows nobody reads."""


def row() -> Row:
    """Above what fires now, below what did."""
    return Row("Alerts", _firing(), _over_time(), _begun())


def _firing() -> object:
    about = "alert, run, rank, instance, gpu, key, subject"
    run = [link("This run", "trackside-training", run="${__value.raw:percentencode}")]
    node = [link("Its GPUs", "trackside-gpus", instance="${__value.raw:percentencode}")]
    return joined(
        "Firing",
        "What fires now, the worst first. docs/alerts.md says of each what it means and what to do; `trackside alerts show "
        "NAME` on that node has all that is known of it.",
        [
            Text("Alert", "alert"),
            Text("Run", "run", run),
            Text("Rank", "rank"),
            Text("Node", "instance", node),
            Text("GPU", "gpu"),
            Text("Key", "key"),
            Text("About", "subject"),
        ],
        [Value("Severity", f"topk({MOST}, {severity(FIRING, about)} > 0)", mappings=SEVERITY_TEXTS)],
        sort="Severity",
        width=24,
        height=9,
        empty="nothing fires",
    )


def _over_time() -> object:
    counts = (Query(f'sum({FIRING[:-1]}, severity="{name}"}}) or {NONE}', name) for name in reversed(SEVERITIES))
    panel = lines(
        "Alerts that fire, by severity",
        "How many fired when. Many at once have one cause more often than many: the oldest critical one is to be read first.",
        "none",
        *counts,
        stacked=True,
        least=0,
    )
    for name, color in SEVERITIES.items():
        panel.override_by_name(name, [models.DynamicConfigValue("color", {"mode": "fixed", "fixedColor": color})])
    return panel


def _begun() -> object:
    """The first time is the series' beginning, which no increase shows."""
    grown = f"increase({BEGUN}[$__range])"
    fresh = f"{grown} unless increase({BEGUN}[$__rate_interval] offset $__range)"
    return bars(
        "Alerts begun",
        "How often alerts began to fire in the time that is shown, the fifteen most frequent. One that comes and goes wants its "
        "cause mended, or its threshold changed.",
        "none",
        Query(
            f"topk(15, sum by (alert, severity) (({fresh}) + 1 or {grown}) > 0)",
            "{{alert}}, {{severity}}",
            instant=True,
        ),
        decimals=0,
        levels=above(1, "blue"),
        empty="none",
    )
