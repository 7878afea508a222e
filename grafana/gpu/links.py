"""NVLink and PCIe: what goes to the other GPUs and to the host."""

from __future__ import annotations

from grafana.board import Row
from grafana.gpu.queries import CHOSEN, GPU, by_gpu, each, rate
from grafana.panels import Query, above, below

from trackside_daemon.alerts.rules.builtin import gpu_use
from trackside_daemon.alerts.rules.builtin.gpu_errors import CORRECTED, LATELY
from trackside_daemon.alerts.settings import ThresholdsSection

LIMITS = ThresholdsSection()
ALL_LANES = next(rule.threshold for rule in gpu_use.rules(LIMITS) if rule.alert == "PcieDegraded")


def row() -> Row:
    """One row of panels for each."""
    return Row("NVLink and PCIe", *_nvlink(), *_pcie(), collapsed=True)


def _nvlink() -> list[object]:
    there, up = each("trackside_gpu_nvlink_links{GPU}"), each("trackside_gpu_nvlink_links_up{GPU}")
    errors = each(rate("trackside_gpu_nvlink_errors_total", f', error=~"{CORRECTED}"'))
    return [
        by_gpu(
            "NVLink traffic",
            "Data sent and received over all links of a GPU. Ranks of a run have much the same; none while the run goes on "
            "means that its collectives go another way.",
            "Bps",
            _both_ways("trackside_gpu_nvlink"),
            least=0,
        ),
        by_gpu(
            "NVLinks down",
            "Collectives go at the pace of the slowest link. One down while others are up is NvlinkDegraded: look at "
            "nvidia-smi nvlink --status and for Xid 74.",
            "none",
            f"({there} - on ({GPU}) {up})",
            levels=above(1),
            least=0,
        ),
        by_gpu(
            "NVLink errors in ten minutes",
            "Corrected errors over all links, at the pace of the moment. Above the line it is NvlinkDegraded: look at "
            "nvidia-smi nvlink --errorcounters.",
            "none",
            f"({errors} * {LATELY:.0f})",
            levels=above(LIMITS.nvlink_errors),
            least=0,
        ),
    ]


def _pcie() -> list[object]:
    lanes, generation = (
        f"({each(f'trackside_gpu_pcie_link_{now}{{GPU}}')} / on ({GPU}) {each(f'trackside_gpu_pcie_link_{best}{{GPU}}')})"
        for now, best in (("width_lanes", "max_width_lanes"), ("generation", "max_generation"))
    )
    errors, again = (f"sum by ({GPU}) ({rate(f'trackside_gpu_pcie_{what}_total')})" for what in ("errors", "replays"))
    return [
        by_gpu(
            "PCIe traffic",
            "Sent and received over PCIe: batches from the host, and what goes to other nodes without GPUDirect.",
            "Bps",
            _both_ways("trackside_gpu_pcie"),
            least=0,
        ),
        by_gpu(
            "PCIe link",
            "Lanes in use over those that there are. Fewer while its rank makes steps is PcieDegraded: reseat the GPU or its "
            "riser. The generation over the highest is a mean; it falls while idle, which is no fault.",
            "percentunit",
            lanes,
            Query(f"avg ({generation} {CHOSEN})", "generation"),
            levels=below(ALL_LANES),
            least=0,
            most=1,
        ),
        by_gpu(
            "PCIe errors and packets sent again",
            "A second, of all kinds. Some for long is a slot, a riser or a cable: look at dmesg for AER errors.",
            "cps",
            f"({errors} + on ({GPU}) {again})",
            least=0,
        ),
    ]


def _both_ways(family: str) -> str:
    sent, received = (each(rate(f"{family}_{way}_bytes_total")) for way in ("transmit", "receive"))
    return f"({sent} + on ({GPU}) {received})"
