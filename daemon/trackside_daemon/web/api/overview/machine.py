"""The machine and its GPUs, as the overview has them: the values of ``/metrics``, what was not measured left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from trackside_daemon.collectors.gpu.gpu import INFO
from trackside_daemon.collectors.host.cpu import CPUS
from trackside_daemon.collectors.host.filesystem.filesystem import AVAIL, SIZE
from trackside_daemon.collectors.host.memory import FIELDS, SWAP_USED
from trackside_daemon.collectors.process.ranks import RANK_INFO
from trackside_daemon.model.metric import json_number
from trackside_daemon.nvml.families import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trackside_daemon.model.state import State
    from trackside_daemon.web.api.overview.rates import Found, Host

_NUMBERS = {
    "utilization_ratio": (),
    "sm_active_ratio": (),
    "memory_used_bytes": (),
    "memory_bytes": (),
    "power_watts": (),
    "power_limit_watts": ("enforced",),
    "temperature_celsius": ("gpu",),
}
"""Families of a GPU, and the labels behind ``gpu`` and ``uuid`` of the series that counts."""


def host(state: State, now: float, name: str, rates: Host) -> dict[str, Any]:
    """The machine; *now* as in `State.snapshot`."""
    memory, available = FIELDS["MemTotal"], FIELDS["MemAvailable"]
    *numbers, sizes, rooms = state.values(now, CPUS, memory, available, SWAP_USED, SIZE, AVAIL)
    cpus, total, left, swap = (next(iter(one.values()), None) for one in numbers)
    return {
        "name": name,
        **present(
            cpus=cpus,
            cpu_ratio=rates.cpu_ratio,
            memory_bytes=total,
            memory_available_bytes=left,
            swap_used_bytes=swap,
        ),
        "disks": [
            {"mountpoint": labels[0], **present(size_bytes=size, avail_bytes=rooms.get(labels))}
            for labels, size in sizes.items()
        ],
        **present(receive_bytes_per_second=rates.receive, transmit_bytes_per_second=rates.transmit),
    }


def gpus(state: State, now: float, ids: Mapping[str, str]) -> list[dict[str, Any]]:
    """The GPUs by their numbers; *ids* are those of the runs, by name."""
    metrics = [FAMILIES[family].metric for family in _NUMBERS]
    up, limits = FAMILIES["up"].metric, FAMILIES["clock_limit_active"].metric
    infos, ups, limited, ranks, *numbers = state.values(now, INFO, up, limits, RANK_INFO, *metrics)
    names = {labels[:2]: labels[INFO.labels.index("name")] for labels in infos}
    return [
        {
            "gpu": gpu,
            "uuid": uuid,
            **({"name": name} if (name := names.get((gpu, uuid))) else {}),
            "up": ups.get((gpu, uuid)) == 1.0,
            **present(
                **{key: found.get((gpu, uuid, *_NUMBERS[key])) for key, found in zip(_NUMBERS, numbers, strict=True)}
            ),
            "limited": _of((gpu, uuid), limited),
            "ranks": [
                {"run": ids.get(run, run), "name": run, "rank": int(rank)}
                for *on, run, rank in ranks
                if on == [gpu, uuid]
            ],
        }
        for gpu, uuid in sorted({*names, *ups}, key=lambda one: (not one[0].isdecimal(), one[0].zfill(8), one[1]))
    ]


def _of(gpu: tuple[str, str], limited: Found) -> list[str]:
    """Why its clocks are kept down; that it has nothing to do is no reason that anybody looks for."""
    return [
        labels[-1]
        for labels, value in limited.items()
        if labels[:2] == gpu and value == 1.0 and labels[-1] != "gpu_idle"
    ]


def present(**values: object) -> dict[str, float | str]:
    """Those that are not None, as JSON can hold them."""
    return {name: json_number(cast("float", value)) for name, value in values.items() if value is not None}
