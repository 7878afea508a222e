"""What breaks in GPUs."""

from __future__ import annotations

from grafana.board import Row
from grafana.gpu.queries import CHOSEN, GPU, THIS_GPU, UNUSED, each, growth, total
from grafana.panels import Query, above, bars, lines, number, states, texts

from trackside_daemon.alerts.rules.builtin.gpu_errors import LATELY

NEEDS = {
    "row replaced at the next reset": "trackside_gpu_row_remap_pending{GPU}",
    "row not replaced": "trackside_gpu_row_remap_failed{GPU}",
    "SRAM worn out": "trackside_gpu_sram_threshold_exceeded{GPU}",
    "reset or reboot": "trackside_gpu_recovery_action{GPU} > bool 0",
    "fabric not ready": "trackside_gpu_fabric_state{GPU} != bool 3",
    "fabric not healthy": "trackside_gpu_fabric_healthy{GPU} == bool 0",
}
"""What a GPU may need or have, and a query that is 1 then."""


def row() -> Row:
    """What is needed now, above what has happened."""
    return Row("Errors and health", _needs(), _xids(), _ecc(), _rows(), collapsed=True)


def _needs() -> object:
    return number(
        "What GPUs need",
        "How many of the chosen GPUs need what. A reset and a row to be replaced want one before the next run "
        "(trackside pause-gpu, nvidia-smi --gpu-reset), worn memory a new GPU, the fabric its manager's log.",
        "none",
        *(Query(total(each(series)), need, instant=True) for need, series in NEEDS.items()),
        levels=above(1, "red"),
        width=24,
    )


def _xids() -> object:
    since = f"time() - trackside_gpu_xid_last_timestamp_seconds{{GPU}} < bool {LATELY:.0f}"
    return states(
        "Xid errors",
        "What the driver has told, red for ten minutes after each as GpuXid is. 13, 31 and 43 are the program's own; for the "
        "others see NVIDIA's table of Xid errors, and dmesg.",
        Query(f"max by (instance, gpu, xid) (({since}) {CHOSEN})", f"{UNUSED}: Xid {{{{xid}}}}"),
        mappings=texts({0: ("before", "text"), 1: ("in the last 10 min", "red")}),
        empty="none",
        width=8,
        links=[THIS_GPU],
    )


def _ecc() -> object:
    kinds = (growth("trackside_gpu_ecc_errors_total", f', kind="{kind}"') for kind in ("uncorrected", "corrected"))
    uncorrected, corrected = (each(series) for series in kinds)
    return lines(
        "ECC errors",
        "New errors of memory: uncorrected by GPU, of the ten with the most, and corrected of all. An uncorrected one is "
        "GpuEccUncorrectable: what was computed from it is wrong, restart the run from its last checkpoint.",
        "none",
        Query(f"topk(10, {uncorrected} {CHOSEN})", f"{UNUSED}, uncorrected"),
        Query(total(corrected), "corrected, of all"),
        width=8,
        least=0,
    )


def _rows() -> object:
    replaced = f"sum by ({GPU}) ({growth('trackside_gpu_remapped_rows_total', window='$__range')})"
    return bars(
        "Rows of memory replaced",
        "In the time that is shown, of the ten GPUs with the most. One that goes on with it is to be replaced soon.",
        "none",
        Query(f"topk(10, {replaced} {CHOSEN})", UNUSED, instant=True),
        width=8,
        decimals=0,
        levels=above(1),
        links=[THIS_GPU],
    )
