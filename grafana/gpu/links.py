"""Panels about NVLink and PCIe."""

from __future__ import annotations

from grafana.board import Row
from grafana.gpu.queries import GPU, SELECTED, by_gpu, each, rate
from grafana.panels import Query, above, below

from trackside_daemon.alerts.rules import builtin
from trackside_daemon.alerts.rules.builtin.gpu import CORRECTED, LATELY
from trackside_daemon.alerts.settings import ThresholdsSection

LIMITS = ThresholdsSection()
ALL_LANES = next(rule.threshold for rule in builtin.rules(LIMITS) if rule.alert == "PcieDegraded")


def row() -> Row:
    """Return the row with NVLink panels above PCIe panels."""
    return Row("NVLink and PCIe", *_nvlink(), *_pcie(), collapsed=True)


def _nvlink() -> list[object]:
    links, up = each("trackside_gpu_nvlink_links{GPU}"), each("trackside_gpu_nvlink_links_up{GPU}")
    errors = each(rate("trackside_gpu_nvlink_errors_total", f', error=~"{CORRECTED}"'))
    return [
        by_gpu(
            "NVLink traffic",
            "Data sent and received over all links of a GPU. The ranks of a run have similar values. No traffic during a run means "
            "that its collectives use another path.",
            "Bps",
            _both_ways("trackside_gpu_nvlink"),
            minimum=0,
        ),
        by_gpu(
            "NVLinks down",
            "Collectives run at the pace of the slowest link. NvlinkDegraded fires if a link is down while others are up: check "
            "nvidia-smi nvlink --status and Xid 74.",
            "none",
            f"({links} - on ({GPU}) {up})",
            levels=above(1),
            minimum=0,
        ),
        by_gpu(
            "NVLink errors in ten minutes",
            "Corrected errors over all links, extrapolated from the current rate. NvlinkDegraded fires above the line: check "
            "nvidia-smi nvlink --errorcounters.",
            "none",
            f"({errors} * {LATELY:.0f})",
            levels=above(LIMITS.nvlink_errors),
            minimum=0,
        ),
    ]


def _pcie() -> list[object]:
    lanes, generation = (
        f"({each(f'trackside_gpu_pcie_link_{current}{{GPU}}')} / on ({GPU}) {each(f'trackside_gpu_pcie_link_{maximum}{{GPU}}')})"
        for current, maximum in (("width_lanes", "max_width_lanes"), ("generation", "max_generation"))
    )
    errors, replays = (f"sum by ({GPU}) ({rate(f'trackside_gpu_pcie_{name}_total')})" for name in ("errors", "replays"))
    return [
        by_gpu(
            "PCIe traffic",
            "Data sent and received over PCIe: batches from the host, and traffic to other nodes without GPUDirect.",
            "Bps",
            _both_ways("trackside_gpu_pcie"),
            minimum=0,
        ),
        by_gpu(
            "PCIe link",
            "Lanes in use divided by the maximum. PcieDegraded fires if a rank makes steps with fewer lanes: reseat the GPU or its "
            "riser. The generation, divided by the highest, is a mean; it falls on idle GPUs, which is normal.",
            "percentunit",
            lanes,
            Query(f"avg ({generation} {SELECTED})", "generation"),
            levels=below(ALL_LANES),
            minimum=0,
            maximum=1,
        ),
        by_gpu(
            "PCIe errors and replays",
            "Errors and replays per second, of all kinds. If they continue, check the slot, the riser or the cable, and dmesg for AER "
            "errors.",
            "cps",
            f"({errors} + on ({GPU}) {replays})",
            minimum=0,
        ),
    ]


def _both_ways(family: str) -> str:
    sent, received = (each(rate(f"{family}_{way}_bytes_total")) for way in ("transmit", "receive"))
    return f"({sent} + on ({GPU}) {received})"
