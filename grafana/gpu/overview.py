"""The first screen of GPUs: how many do what, and each of them in a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grafana.board import Row
from grafana.gpu.queries import GPU, each, ranked, total, unused
from grafana.gpu.work import IDLE_OR_LITTLE, MEMORY, SIZE, SM, USED, UTILIZATION
from grafana.panels import NONE, Query, above, link, number, texts
from grafana.tables import Text, Value, joined

from trackside_daemon.alerts.rules.builtin.gpu import ACTIVE
from trackside_daemon.alerts.rules.builtin.gpu_use import IDLE
from trackside_daemon.alerts.settings import ThresholdsSection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grafana.panels import Level

LIMITS = ThresholdsSection()
ASSIGNED = each('trackside_gpu_rank_info{RANK, gpu=~"$gpu"}')
HELD = each(f"trackside_gpu_clock_limit_active{{GPU, {ACTIVE[0].promql()}}}")
POWER = each("trackside_gpu_power_watts{GPU}")
CORE = each('trackside_gpu_temperature_celsius{GPU, sensor="gpu"}')
ALERTS = f'sum by ({GPU}) (trackside_alert_firing{{GPU, severity!="info"}})'
PLACE = "instance, gpu, run, rank"


def row() -> Row:
    """Eight numbers and the table."""
    return Row("Are they well, and at work?", *_health(), *_use(), _table())


def _number(title: str, description: str, unit: str, *queries: Query, **how: Any) -> object:
    return number(title, description, unit, *(one._replace(instant=True) for one in queries), width=3, **how)


def _health() -> list[object]:
    return [
        _number(
            "Visible and expected",
            "GPUs that the driver of the chosen nodes counts, and how many there should be. Fewer is GpuMissing: look at dmesg "
            "and lspci.",
            "none",
            Query("sum(trackside_gpus_visible{HERE})", "visible"),
            Query("sum(trackside_gpus_expected{HERE})", "expected"),
        ),
        _number(
            "Not answering",
            "GPUs that are lost, hang or are gone: GpuLost. What trains on them hangs or has died; the table names them.",
            "none",
            Query(total(f"{each('trackside_gpu_up{GPU}')} == bool 0"), "lost"),
            levels=above(1, "red"),
        ),
        _number(
            "Kept down",
            "GPUs whose clocks the hardware keeps down now, for heat or power. Clocks and throttling below has the reason.",
            "none",
            Query(total(HELD), "kept down"),
            levels=above(1),
        ),
        _number(
            "Alerts",
            "Alerts of the chosen GPUs that fire, from warnings on. The table says of which GPU, and All alerts what they are.",
            "none",
            Query(f"{total(ALERTS)} or {NONE}", "firing"),
            levels=above(1, "red"),
            links=[link("All alerts", "trackside-fleet", "instance")],
        ),
    ]


def _use() -> list[object]:
    return [
        _number(
            "With a rank",
            "GPUs that a rank of a run is on, each once. The others are free, or used by what Trackside does not watch.",
            "none",
            Query(f"count({ASSIGNED}) or {NONE}", "assigned"),
            links=[link("All runs", "trackside-fleet", "instance")],
        ),
        _number(
            "Busy",
            "GPUs on which a kernel ran just now. Fewer than those with a rank: something waits, look at its run.",
            "none",
            Query(total(f"{UTILIZATION} > bool {IDLE}"), "busy"),
        ),
        _number(
            "Power in all",
            "What the chosen GPUs draw together. When it falls at once while a run goes on, the run waits.",
            "watt",
            Query(total(POWER), "drawn"),
        ),
        _number(
            "Memory in all",
            "Device memory in use on all chosen GPUs, and its size. Frameworks keep what they have once had.",
            "bytes",
            Query(total(USED), "used"),
            Query(total(SIZE), "size"),
        ),
    ]


def _table() -> object:
    known = each("trackside_gpu_info{GPU}")
    named = (
        f"{_all(known)} * on (instance, gpu) group_left (name) max by (instance, gpu, name) (trackside_gpu_info{{GPU}})"
    )
    this = link(
        "Only this GPU",
        "trackside-gpus",
        instance="${__data.fields.instance:percentencode}",
        gpu="${__value.raw:percentencode}",
    )
    its = link("Its run", "trackside-training", run="${__value.raw:percentencode}")
    return joined(
        "GPUs",
        "Each chosen GPU as it is now, by the rank that trains on it. Two ranks on one GPU are two rows, and may be a mistake. "
        "Those with alerts come first: docs/alerts.md says of each alert what to do.",
        [
            Text(
                "Node", "instance", [link("Only this node", "trackside-gpus", instance="${__value.raw:percentencode}")]
            ),
            Text("GPU", "gpu", [this]),
            Text("Name", "name", expr=named),
            Text("Run", "run", [its]),
            Text("Rank", "rank"),
        ],
        [
            Value(
                "State", _all(each("trackside_gpu_up{GPU}")), mappings=texts({0: ("lost", "red"), 1: ("up", "green")})
            ),
            _share("Utilization", UTILIZATION, IDLE_OR_LITTLE),
            _share("SMs active", SM),
            _share("Memory", MEMORY, above(LIMITS.gpu_memory_ratio)),
            Value("Power", _all(POWER), "watt", decimals=0),
            Value("Temperature", _all(CORE), "celsius", above(LIMITS.gpu_hot_celsius), decimals=0),
            Value("Kept down", _all(HELD), mappings=texts({0: ("no", "text"), 1: ("yes", "orange")})),
            Value("Alerts", _all(ALERTS), levels=above(1, "red")),
        ],
        sort="Alerts",
        width=24,
        height=10,
    )


def _share(title: str, series: str, levels: Sequence[Level] = ()) -> Value:
    return Value(title, _all(series), "percentunit", levels, decimals=0)


def _all(series: str) -> str:
    """With and without a rank."""
    return f"max by ({PLACE}) ({ranked(series)} or {unused(series)})"
