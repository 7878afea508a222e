"""The first row of the fleet: nodes, GPUs, runs and alerts in numbers."""

from __future__ import annotations

from grafana.board import Row
from grafana.cluster.alerts import FIRING
from grafana.cluster.gpu_hours import ASSIGNED, BUSY
from grafana.daemon.overview import UP
from grafana.panels import ZERO_IF_UP, Query, above, link, number


def row() -> Row:
    """Return the row with eight numbers."""
    return Row("Now", *_nodes(), *_activity())


def _number(title: str, description: str, unit: str, *queries: Query, **how: object) -> object:
    return number(title, description, unit, *(query._replace(instant=True) for query in queries), width=3, **how)


def _nodes() -> list[object]:
    return [
        _number(
            "Nodes",
            "Daemons that Prometheus can scrape, and those that it cannot. After five minutes, TracksideSidecarDown fires for the "
            "latter: check the node, the daemon or the network.",
            "none",
            Query(f"sum({UP})", "up"),
            Query(f"sum(({UP}) == bool 0)", "down"),
            links=[link("Daemons", "trackside-itself")],
        ),
        _number(
            "GPUs",
            "Visible GPUs, and those with a rank, each counted once.",
            "none",
            Query("sum(trackside_gpus_visible{HERE})", "available"),
            Query(f"{ASSIGNED} or {ZERO_IF_UP}", "assigned"),
            links=[link("GPUs", "trackside-gpus", "instance")],
        ),
        _number(
            "Missing GPUs",
            "GPUs that do not answer (GpuLost), and expected GPUs that are not present (GpuMissing). The list of nodes shows where.",
            "none",
            Query("sum(trackside_gpu_up{HERE} == bool 0)", "lost"),
            Query("sum(clamp_min(trackside_gpus_expected{HERE} - trackside_gpus_visible{HERE}, 0))", "missing"),
            levels=above(1, "red"),
        ),
        _number(
            "GPUs busy",
            "Share of the GPUs' time in which a kernel ran. A running kernel may do little work; see the dashboard GPUs.",
            "percentunit",
            Query(f"{BUSY} / sum(trackside_gpus_visible{{HERE}})", "busy"),
            decimals=0,
        ),
    ]


def _activity() -> list[object]:
    return [
        _number(
            "Runs",
            "Runs that make steps or are about to. The charts below include ended runs.",
            "none",
            Query(
                'count(max by (run) (trackside_training_state{RUN, state=~"starting|running|stalled"}) == 1)'
                f" or {ZERO_IF_UP}",
                "live",
            ),
        ),
        _number(
            "Tokens per second",
            "Tokens per second over all selected runs. If it falls without the end of a run, see the alerts below.",
            "short",
            Query("sum(rate(trackside_training_tokens_total{RUN}[$__rate_interval]))", "tokens per second"),
            empty="no tokens",
        ),
        _number(
            "Power",
            "Power of all GPUs together.",
            "watt",
            Query("sum(trackside_gpu_power_watts{HERE})", "power"),
        ),
        _number(
            "Alerts",
            "Firing warnings and critical alerts of the selected runs, of nodes and of GPUs. The tables below name them.",
            "none",
            *(
                Query(f'count({FIRING[:-1]}, severity="{severity}"}} == 1) or {ZERO_IF_UP}', severity)
                for severity in ("critical", "warning")
            ),
            levels=above(1, "red"),
        ),
    ]
