"""The host and its GPUs in the overview: values of ``/metrics``; unmeasured ones are omitted."""

from collections.abc import Mapping
from typing import Any, cast

from trackside_daemon.model.families import gpu as gpu_families
from trackside_daemon.model.families import host
from trackside_daemon.model.metric import json_number
from trackside_daemon.model.state import State
from trackside_daemon.web.api.overview.rates import HostRates, SeriesValues

# GPU families, and the labels after `gpu` and `uuid` that select the series.
_GPU_FAMILIES = {
    "utilization_ratio": (),
    "sm_active_ratio": (),
    "memory_used_bytes": (),
    "memory_bytes": (),
    "power_watts": (),
    "power_limit_watts": ("enforced",),
    "temperature_celsius": ("gpu",),
    "clock_hertz": ("sm",),
}


def host_json(state: State, now: float, name: str, rates: HostRates) -> dict[str, Any]:
    """Return the host's values; *now* is in seconds of the monotonic clock."""
    memory, available = host.MEMORY, host.MEMORY_AVAILABLE
    *numbers, sizes, free_bytes = state.values(
        now, host.CPUS, memory, available, host.SWAP_USED, host.FILESYSTEM_SIZE, host.FILESYSTEM_AVAIL
    )
    cpus, total_bytes, available_bytes, swap_bytes = (next(iter(series.values()), None) for series in numbers)
    return {
        "name": name,
        **without_none(
            cpus=cpus,
            cpu_ratio=rates.cpu_ratio,
            memory_bytes=total_bytes,
            memory_available_bytes=available_bytes,
            swap_used_bytes=swap_bytes,
        ),
        "disks": [
            {"mountpoint": labels[0], **without_none(size_bytes=size, avail_bytes=free_bytes.get(labels))}
            for labels, size in sizes.items()
        ],
        **without_none(receive_bytes_per_second=rates.receive, transmit_bytes_per_second=rates.transmit),
    }


def gpus_json(state: State, now: float, run_ids: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the values of each GPU in numeric order; *run_ids* are by run name."""
    metrics = [gpu_families.FAMILIES[family].metric for family in _GPU_FAMILIES]
    up, limits = gpu_families.UP, gpu_families.CLOCK_LIMIT_ACTIVE
    infos, ups, limited, ranks, *numbers = state.values(
        now, gpu_families.INFO, up, limits, gpu_families.RANK_INFO, *metrics
    )
    names = {labels[:2]: labels[gpu_families.INFO.labels.index("name")] for labels in infos}
    return [
        {
            "gpu": gpu,
            "uuid": uuid,
            **({"name": name} if (name := names.get((gpu, uuid))) else {}),
            "up": ups.get((gpu, uuid)) == 1.0,
            **without_none(
                **{
                    key: series.get((gpu, uuid, *_GPU_FAMILIES[key]))
                    for key, series in zip(_GPU_FAMILIES, numbers, strict=True)
                }
            ),
            "limited": _limit_reasons((gpu, uuid), limited),
            "ranks": [
                {"run": run_ids.get(run, run), "name": run, "rank": int(rank)}
                for *device, run, rank in ranks
                if device == [gpu, uuid]
            ],
        }
        for gpu, uuid in sorted({*names, *ups}, key=_gpu_order)
    ]


def _gpu_order(gpu: tuple[str, ...]) -> tuple[bool, str, str]:
    """Return a sort key that orders numbered GPUs by their number, in front of all others."""
    number, uuid = gpu
    return not number.isdecimal(), number.zfill(8), uuid


def _limit_reasons(gpu: tuple[str, str], limited: SeriesValues) -> list[str]:
    """Return the reasons that limit a GPU's clocks, except that it is idle."""
    return [
        labels[-1]
        for labels, value in limited.items()
        if labels[:2] == gpu and value == 1.0 and labels[-1] != "gpu_idle"
    ]


def without_none(**values: object) -> dict[str, float | str]:
    """Return the values that are not None, as JSON can hold them."""
    return {name: json_number(cast("float", value)) for name, value in values.items() if value is not None}
