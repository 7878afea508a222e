"""Panels about errors and health of GPUs."""

from __future__ import annotations

from grafana.board import Row
from grafana.gpu.queries import GPU, SELECTED, THIS_GPU, UNUSED, each, growth, total
from grafana.panels import Query, above, bars, lines, number, states, value_texts

from trackside_daemon.alerts.rules.builtin.gpu import LATELY

PROBLEMS = {
    "row replaced at the next reset": "trackside_gpu_row_remap_pending{GPU}",
    "row not replaced": "trackside_gpu_row_remap_failed{GPU}",
    "SRAM worn out": "trackside_gpu_sram_threshold_exceeded{GPU}",
    "reset or reboot": "trackside_gpu_recovery_action{GPU} > bool 0",
    "fabric not ready": "trackside_gpu_fabric_state{GPU} != bool 3",
    "fabric not healthy": "trackside_gpu_fabric_healthy{GPU} == bool 0",
}
"""Problems of a GPU, each with a query that is 1 while the GPU has it."""


def row() -> Row:
    """Return the row with current problems above past errors."""
    return Row("Errors and health", _problems(), _xids(), _ecc(), _remapped_rows(), collapsed=True)


def _problems() -> object:
    return number(
        "GPUs that need attention",
        "Number of selected GPUs with each problem. A recommended reset and a pending row replacement need a reset before the next "
        "run (trackside pause-gpu, nvidia-smi --gpu-reset). Worn memory needs a new GPU. For the fabric, see its manager's log.",
        "none",
        *(Query(total(each(series)), problem, instant=True) for problem, series in PROBLEMS.items()),
        levels=above(1, "red"),
        width=24,
    )


def _xids() -> object:
    since = f"time() - trackside_gpu_xid_last_timestamp_seconds{{GPU}} < bool {LATELY:.0f}"
    return states(
        "Xid errors",
        "Xid errors reported by the driver, red for ten minutes after each, as for GpuXid. 13, 31 and 43 are errors of the program. "
        "For others see NVIDIA's table of Xid errors, and dmesg.",
        Query(f"max by (instance, gpu, xid) (({since}) {SELECTED})", f"{UNUSED}: Xid {{{{xid}}}}"),
        mappings=value_texts({0: ("before", "text"), 1: ("in the last 10 min", "red")}),
        empty="none",
        width=8,
        links=[THIS_GPU],
    )


def _ecc() -> object:
    kinds = (growth("trackside_gpu_ecc_errors_total", f', kind="{kind}"') for kind in ("uncorrected", "corrected"))
    uncorrected, corrected = (each(series) for series in kinds)
    return lines(
        "ECC errors",
        "New memory errors: uncorrected ones of the ten GPUs with the most, and corrected ones of all. Uncorrected errors fire "
        "GpuEccUncorrectable: results computed from that memory are wrong, so restart the run from its last checkpoint.",
        "none",
        Query(f"topk(10, {uncorrected} {SELECTED})", f"{UNUSED}, uncorrected"),
        Query(total(corrected), "corrected, all GPUs"),
        width=8,
        minimum=0,
    )


def _remapped_rows() -> object:
    remapped = f"sum by ({GPU}) ({growth('trackside_gpu_remapped_rows_total', window='$__range')})"
    return bars(
        "Remapped memory rows",
        "Memory rows replaced in the displayed time, for the ten GPUs with the most. Replace a GPU soon if its number keeps growing.",
        "none",
        Query(f"topk(10, {remapped} {SELECTED})", UNUSED, instant=True),
        width=8,
        decimals=0,
        levels=above(1),
        links=[THIS_GPU],
    )
