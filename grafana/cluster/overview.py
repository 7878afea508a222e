"""The first screen of all runs and nodes."""

from __future__ import annotations

from grafana.board import Row
from grafana.cluster.alerts import FIRING
from grafana.cluster.hours import ASSIGNED, BUSY
from grafana.own.daemons import UP
from grafana.panels import NONE, Query, above, link, number


def row() -> Row:
    """Eight numbers."""
    return Row("Now", *_nodes(), *_work())


def _number(title: str, description: str, unit: str, *queries: Query, **how: object) -> object:
    return number(title, description, unit, *(one._replace(instant=True) for one in queries), width=3, **how)


def _nodes() -> list[object]:
    return [
        _number(
            "Nodes",
            "Daemons that Prometheus reaches, and those that it does not. Missing ones are TracksideSidecarDown after five "
            "minutes: the node, the daemon or the network.",
            "none",
            Query(f"sum({UP})", "up"),
            Query(f"sum(({UP}) == bool 0)", "down"),
            links=[link("The daemons", "trackside-itself")],
        ),
        _number(
            "GPUs",
            "GPUs that are there, and those with a rank, each once.",
            "none",
            Query("sum(trackside_gpus_visible{HERE})", "there"),
            Query(f"{ASSIGNED} or {NONE}", "with a rank"),
            links=[link("The GPUs", "trackside-gpus", "instance")],
        ),
        _number(
            "GPUs not there",
            "GPUs that do not answer, or that should be there and are not: GpuLost, GpuMissing. The list of nodes says where.",
            "none",
            Query("sum(trackside_gpu_up{HERE} == bool 0)", "lost"),
            Query("sum(clamp_min(trackside_gpus_expected{HERE} - trackside_gpus_visible{HERE}, 0))", "missing"),
            levels=above(1, "red"),
        ),
        _number(
            "GPUs busy",
            "Share of the GPUs' time in which a kernel ran. Some kernel is not much work: see the dashboard GPUs.",
            "percentunit",
            Query(f"{BUSY} / sum(trackside_gpus_visible{{HERE}})", "busy"),
            decimals=0,
        ),
    ]


def _work() -> list[object]:
    return [
        _number(
            "Runs",
            "Runs that make steps, or are about to; those that have ended are in the charts below.",
            "none",
            Query(
                'count(max by (run) (trackside_training_state{RUN, state=~"starting|running|stalled"}) == 1)'
                f" or {NONE}",
                "live",
            ),
        ),
        _number(
            "Tokens per second",
            "Of all chosen runs together. A fall that no run's end explains has its alert below.",
            "short",
            Query("sum(rate(trackside_training_tokens_total{RUN}[$__rate_interval]))", "tokens per second"),
            empty="no tokens",
        ),
        _number(
            "Power",
            "What all GPUs draw together.",
            "watt",
            Query("sum(trackside_gpu_power_watts{HERE})", "drawn"),
        ),
        _number(
            "Alerts",
            "Alerts that fire, without information: of the chosen runs, of nodes and of GPUs. The tables below name them.",
            "none",
            *(
                Query(f'count({FIRING[:-1]}, severity="{severity}"}} == 1) or {NONE}', severity)
                for severity in ("critical", "warning")
            ),
            levels=above(1, "red"),
        ),
    ]
