"""The first row of the GPUs: their health and use in numbers, and a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grafana.board import Row
from grafana.gpu.queries import GPU, each, ranked, total, unused
from grafana.gpu.utilization import MEMORY, SIZE, SM, USED, UTILIZATION, UTILIZATION_LEVELS
from grafana.panels import ZERO_IF_UP, Query, above, link, number, value_texts
from grafana.tables import Text, Value, joined_table

from trackside_daemon.alerts.rules.builtin.gpu import ACTIVE, IDLE
from trackside_daemon.alerts.settings import ThresholdsSection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grafana.panels import Level

LIMITS = ThresholdsSection()
ASSIGNED = each('trackside_gpu_rank_info{RANK, gpu=~"$gpu"}')
THROTTLED = each(f"trackside_gpu_clock_limit_active{{GPU, {ACTIVE[0].promql()}}}")
POWER = each("trackside_gpu_power_watts{GPU}")
CORE = each('trackside_gpu_temperature_celsius{GPU, sensor="gpu"}')
ALERTS = f'sum by ({GPU}) (trackside_alert_firing{{GPU, severity!="info"}})'
ROW_LABELS = "instance, gpu, run, rank"


def row() -> Row:
    """Return the row with eight numbers and the table."""
    return Row("Health and use", *_health(), *_use(), _table())


def _number(title: str, description: str, unit: str, *queries: Query, **how: Any) -> object:
    return number(title, description, unit, *(query._replace(instant=True) for query in queries), width=3, **how)


def _health() -> list[object]:
    return [
        _number(
            "Visible and expected",
            "GPUs that the driver of the selected nodes reports, and how many are expected. Fewer is GpuMissing: check dmesg "
            "and lspci.",
            "none",
            Query("sum(trackside_gpus_visible{HERE})", "visible"),
            Query("sum(trackside_gpus_expected{HERE})", "expected"),
        ),
        _number(
            "Lost",
            "GPUs that are lost, hang or are gone (GpuLost). Ranks on them hang or have died. The table names them.",
            "none",
            Query(total(f"{each('trackside_gpu_up{GPU}')} == bool 0"), "lost"),
            levels=above(1, "red"),
        ),
        _number(
            "Throttled",
            "GPUs whose clocks the hardware lowers now, for heat or power. The row Clocks and throttling has the reason.",
            "none",
            Query(total(THROTTLED), "throttled"),
            levels=above(1),
        ),
        _number(
            "Alerts",
            "Firing warnings and critical alerts of the selected GPUs. The table shows which GPUs; All alerts has the details.",
            "none",
            Query(f"{total(ALERTS)} or {ZERO_IF_UP}", "firing"),
            levels=above(1, "red"),
            links=[link("All alerts", "trackside-fleet", "instance")],
        ),
    ]


def _use() -> list[object]:
    return [
        _number(
            "Assigned",
            "GPUs with a rank of a run, each counted once. The others are free, or used by processes that trackside does not monitor.",
            "none",
            Query(f"count({ASSIGNED}) or {ZERO_IF_UP}", "assigned"),
            links=[link("All runs", "trackside-fleet", "instance")],
        ),
        _number(
            "Busy",
            "GPUs on which a kernel ran just now. If there are fewer than assigned ones, something waits; see its run.",
            "none",
            Query(total(f"{UTILIZATION} > bool {IDLE}"), "busy"),
        ),
        _number(
            "Total power",
            "Power over all selected GPUs. If it drops suddenly during a run, the run waits.",
            "watt",
            Query(total(POWER), "power"),
        ),
        _number(
            "Total memory",
            "Device memory in use and its size over all selected GPUs. Frameworks keep memory that they have once allocated.",
            "bytes",
            Query(total(USED), "used"),
            Query(total(SIZE), "size"),
        ),
    ]


def _table() -> object:
    info = each("trackside_gpu_info{GPU}")
    named = (
        f"{_with_ranks(info)} * on (instance, gpu) group_left (name)"
        " max by (instance, gpu, name) (trackside_gpu_info{GPU})"
    )
    gpu_link = link(
        "Only this GPU",
        "trackside-gpus",
        instance="${__data.fields.instance:percentencode}",
        gpu="${__value.raw:percentencode}",
    )
    run_link = link("This run", "trackside-training", run="${__value.raw:percentencode}")
    return joined_table(
        "GPUs",
        "The current state of each selected GPU, with the rank that uses it. Two ranks on one GPU are two rows, and may be a "
        "mistake. GPUs with alerts come first; docs/alerts.md explains what to do.",
        [
            Text(
                "Node", "instance", [link("Only this node", "trackside-gpus", instance="${__value.raw:percentencode}")]
            ),
            Text("GPU", "gpu", [gpu_link]),
            Text("Name", "name", expr=named),
            Text("Run", "run", [run_link]),
            Text("Rank", "rank"),
        ],
        [
            Value(
                "State",
                _with_ranks(each("trackside_gpu_up{GPU}")),
                mappings=value_texts({0: ("lost", "red"), 1: ("up", "green")}),
            ),
            _share("Utilization", UTILIZATION, UTILIZATION_LEVELS),
            _share("SMs active", SM),
            _share("Memory", MEMORY, above(LIMITS.gpu_memory_ratio)),
            Value("Power", _with_ranks(POWER), "watt", decimals=0),
            Value("Temperature", _with_ranks(CORE), "celsius", above(LIMITS.gpu_hot_celsius), decimals=0),
            Value("Throttled", _with_ranks(THROTTLED), mappings=value_texts({0: ("no", "text"), 1: ("yes", "orange")})),
            Value("Alerts", _with_ranks(ALERTS), levels=above(1, "red")),
        ],
        sort="Alerts",
        width=24,
        height=10,
    )


def _share(title: str, series: str, levels: Sequence[Level] = ()) -> Value:
    return Value(title, _with_ranks(series), "percentunit", levels, decimals=0)


def _with_ranks(series: str) -> str:
    """Return *series* by rank, and without a rank for free GPUs."""
    return f"max by ({ROW_LABELS}) ({ranked(series)} or {unused(series)})"
