"""A small correct dashboard, to which tests add one mistake at a time."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grafana.boards import Board

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
HERE = 'job=~"$job", instance=~"$instance"'


def variable(name: str, label: str, query: str) -> Board:
    """Return a variable of label values with multiple selection."""
    return {
        "allValue": ".+",
        "datasource": SOURCE,
        "includeAll": True,
        "label": label,
        "multi": True,
        "name": name,
        "query": query,
        "refresh": 2,
        "type": "query",
    }


def panel(number: int, title: str, unit: str, *exprs: str, legend: str = "{{instance}}") -> Board:
    """Return a chart as wide as the page, below the previous one."""
    return {
        "datasource": SOURCE,
        "description": "What it shows.",
        "fieldConfig": {"defaults": {"unit": unit, "links": []}, "overrides": []},
        "gridPos": {"h": 8, "w": 24, "x": 0, "y": 8 * number},
        "id": number,
        "targets": [
            {"datasource": SOURCE, "expr": expr, "legendFormat": legend, "refId": "ABC"[at]}
            for at, expr in enumerate(exprs)
        ],
        "title": title,
        "type": "timeseries",
    }


GOOD: Board = {
    "annotations": {},
    "editable": False,
    "links": [],
    "panels": [
        panel(1, "Memory", "bytes", f"trackside_host_memory_available_bytes{{{HERE}}}"),
        panel(
            2,
            "Energy",
            "watt",
            f"sum by (instance) (rate(trackside_gpu_energy_joules_total{{{HERE}}}[$__rate_interval]))",
        ),
    ],
    "refresh": "30s",
    "schemaVersion": 42,
    "tags": ["trackside"],
    "templating": {
        "list": [
            {"label": "Data source", "name": "datasource", "query": "prometheus", "type": "datasource"},
            variable("job", "Job", "label_values(trackside_build_info, job)"),
            variable("instance", "Instance", 'label_values(trackside_build_info{job=~"$job"}, instance)'),
        ]
    },
    "time": {"from": "now-1h", "to": "now"},
    "title": "Trackside / Sample",
    "uid": "trackside-sample",
}


def sample() -> Board:
    """Return a copy that may be changed."""
    return deepcopy(GOOD)
