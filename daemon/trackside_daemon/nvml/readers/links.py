"""PCIe, NVLink with its fabric, and the link to a Grace CPU: series that need other calls than `FIELDS`, or several links."""

import ctypes
from functools import partial
from typing import Any

from trackside_daemon.nvml.readers.fields import Field, is_source, read_field_by_link, read_field_sum, read_fields
from trackside_daemon.nvml.readers.unsupported import MAX_COUNT, Unsupported, call_if_supported, read_supported, series
from trackside_daemon.nvml.reading import Value

NVLINKS = Field(91, "nvlink_links")
SPEED = Field(164, "nvlink_speed_bytes_per_second")
COMMON_SPEED = Field(90, "nvlink_speed_bytes_per_second")
MB = 1e6

HOPPER_ERRORS = tuple(
    Field(number, "nvlink_errors_total", (error,))
    for number, error in ((161, "replay"), (162, "recovery"), (163, "crc"))
)
# Fields by direction: the one up to NVLink 4, and the one of NVLink 5.
LINK_BYTES = (
    (
        Field(138, "nvlink_link_transmit_bytes_total", divisor=1 / 1024),
        Field(202, "nvlink_link_transmit_bytes_total"),
    ),
    (
        Field(139, "nvlink_link_receive_bytes_total", divisor=1 / 1024),
        Field(204, "nvlink_link_receive_bytes_total"),
    ),
)

C2C_LINKS = Field(170, "c2c_links")
C2C_UP = Field(171, "c2c_link_up")
C2C_ERRORS = tuple(
    Field(number, "c2c_errors_total", (error,))
    for number, error in ((231, "interrupt"), (232, "replay"), (233, "replay_b2b"))
)


def pcie(nvml: Any, handle: Any, unsupported: Unsupported) -> list[Value]:
    """Read ``nvmlDeviceGetCurrPcieLink...``, ``nvmlDeviceGetMaxPcieLink...`` and ``nvmlDeviceGetPcieReplayCounter``."""
    functions = {
        "pcie_link_generation": nvml.nvmlDeviceGetCurrPcieLinkGeneration,
        "pcie_link_max_generation": nvml.nvmlDeviceGetMaxPcieLinkGeneration,
        "pcie_link_width_lanes": nvml.nvmlDeviceGetCurrPcieLinkWidth,
        "pcie_link_max_width_lanes": nvml.nvmlDeviceGetMaxPcieLinkWidth,
        "pcie_replays_total": nvml.nvmlDeviceGetPcieReplayCounter,
    }
    return read_supported(
        nvml, unsupported, ((family, (), partial(read, handle)) for family, read in functions.items())
    )


def pcie_throughput(nvml: Any, handle: Any, unsupported: Unsupported) -> list[Value]:
    """Read ``nvmlDeviceGetPcieThroughput``, in KB/s; each direction blocks for the 20 ms that it measures."""

    def rate(counter: int) -> float:
        return float(nvml.nvmlDeviceGetPcieThroughput(handle, counter) * 1000)

    return read_supported(
        nvml,
        unsupported,
        (
            ("pcie_transmit_bytes_per_second", (), partial(rate, nvml.NVML_PCIE_UTIL_TX_BYTES)),
            ("pcie_receive_bytes_per_second", (), partial(rate, nvml.NVML_PCIE_UTIL_RX_BYTES)),
        ),
    )


def nvlink(nvml: Any, handle: Any, unsupported: Unsupported) -> list[Value]:
    """Read the number of NVLinks, how many are up, the speed of the slowest that is up, and Hopper's errors.

    The state is from ``nvmlDeviceGetNvLinkState``, the speed in MB/s. Hopper's errors are of the links' data layer: CRC
    errors, and replays and recoveries where `FIELDS` has no totals. Bytes and the errors of other GPUs are in `FIELDS`.
    """
    count = _link_count(nvml, handle, NVLINKS, unsupported)
    if not count:
        return [] if count is None else [("nvlink_links", (), 0)]
    values: list[Value] = [("nvlink_links", (), count)]
    states = _link_states(nvml, handle, count, unsupported)
    if states:
        values.append(("nvlink_links_up", (), sum(states.values())))
    up = [link for link, state in states.items() if state]
    speeds = [speed for speed in read_field_by_link(nvml, handle, SPEED, up, unsupported).values() if speed]
    # GPUs that do not report the speed of each link may report one that all links have.
    if up and not speeds:
        speeds = [speed for _, _, speed in read_fields(nvml, handle, (COMMON_SPEED,), unsupported)]
    if speeds:
        values.append((SPEED.family, (), min(speeds) * MB))
    return values + _sums_over_links(nvml, handle, HOPPER_ERRORS, count, unsupported)


def links(nvml: Any, handle: Any, unsupported: Unsupported) -> list[Value]:
    """Read of each NVLink whether it is up, and the bytes of data that it carried, in KiB up to NVLink 4."""
    count = _link_count(nvml, handle, NVLINKS, unsupported)
    if not count:
        return []
    values: list[Value] = [
        ("nvlink_up", (str(link),), state) for link, state in _link_states(nvml, handle, count, unsupported).items()
    ]
    for old, new in LINK_BYTES:
        for field in (old, new):
            carried = read_field_by_link(nvml, handle, field, range(count), unsupported)
            if carried and is_source(field, unsupported):
                values += [(field.family, (str(link),), value) for link, value in carried.items()]
    return values


def c2c(nvml: Any, handle: Any, unsupported: Unsupported) -> list[Value]:
    """Read the links to the CPU of a Grace superchip, and their errors, summed over the links."""
    count = _link_count(nvml, handle, C2C_LINKS, unsupported)
    if not count:
        return []
    states = read_field_by_link(nvml, handle, C2C_UP, range(count), unsupported)
    up: list[Value] = [(C2C_UP.family, (str(link),), state) for link, state in states.items()]
    return up + _sums_over_links(nvml, handle, C2C_ERRORS, count, unsupported)


def _link_count(nvml: Any, handle: Any, field: Field, unsupported: Unsupported) -> int | None:
    for _, _, count in read_fields(nvml, handle, (field,), unsupported):
        if count <= MAX_COUNT:
            return int(count)
        unsupported.add(field.name, "the driver reports more than any GPU has")
    return None


def _link_states(nvml: Any, handle: Any, count: int, unsupported: Unsupported) -> dict[int, float]:
    """Return 1 or 0 for each link that reports whether it is up."""

    def state(link: int) -> float:
        return float(bool(nvml.nvmlDeviceGetNvLinkState(handle, link)))

    states = {
        link: call_if_supported(nvml, unsupported, series("nvlink_up", (str(link),)), partial(state, link))
        for link in range(count)
    }
    return {link: up for link, up in states.items() if up is not None}


def _sums_over_links(
    nvml: Any, handle: Any, fields: tuple[Field, ...], count: int, unsupported: Unsupported
) -> list[Value]:
    return [value for field in fields for value in read_field_sum(nvml, handle, field, count, unsupported)]


# Words in pynvml's `NVML_GPU_FABRIC_HEALTH_MASK_...`, by our label.
CONDITIONS = {
    "degraded_bandwidth": "DEGRADED_BW",
    "route_recovery": "ROUTE_RECOVERY",
    "route_unhealthy": "ROUTE_UNHEALTHY",
    "access_timeout_recovery": "ACCESS_TIMEOUT_RECOVERY",
    "incorrect_configuration": "INCORRECT_CONFIGURATION",
}


def fabric(nvml: Any, handle: Any, unsupported: Unsupported) -> list[Value]:
    """Read ``nvmlDeviceGetGpuFabricInfoV`` version 3, or 2 if the driver is older; Hopper and later with NVSwitch."""
    version3 = "version 3 of nvmlDeviceGetGpuFabricInfoV"
    info = call_if_supported(nvml, unsupported, version3, lambda: _read_info(nvml, handle, "_v3"))
    info = info or _read_info(nvml, handle, "V")
    values: list[Value] = [("fabric_state", (), info.state)]
    if info.state != nvml.NVML_GPU_FABRIC_STATE_COMPLETED:
        return values
    problems = _problems(nvml, info)
    values += [("fabric_problem", (condition,), float(present)) for condition, present in problems.items()]
    # The mask omits what this GPU does not support, so a fabric without any known condition does not count as healthy.
    summary = getattr(info, "healthSummary", nvml.NVML_GPU_FABRIC_HEALTH_SUMMARY_NOT_SUPPORTED)
    if summary != nvml.NVML_GPU_FABRIC_HEALTH_SUMMARY_NOT_SUPPORTED:
        values.append(("fabric_healthy", (), float(summary == nvml.NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY)))
    elif len(problems) > 1:
        values.append(("fabric_healthy", (), float(not any(problems.values()))))
    return values


def _read_info(nvml: Any, handle: Any, version: str) -> Any:
    """Fill in a structure ``c_nvmlGpuFabricInfo{version}_t``."""
    info = getattr(nvml, f"c_nvmlGpuFabricInfo{version}_t")()
    nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    return info


def _problems(nvml: Any, info: Any) -> dict[str, bool]:
    """Return whether each condition that the GPU can report is present, and whether registration failed."""
    problems = {"registration_failed": info.status != nvml.NVML_SUCCESS}
    for condition, word in CONDITIONS.items():
        shift = getattr(nvml, f"NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_{word}")
        width = getattr(nvml, f"NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_{word}")
        state = info.healthMask >> shift & width
        if state:
            # 0 means not supported. 1 means no error in the configuration, but for the other conditions that they are
            # present.
            problems[condition] = state > 1 if word == "INCORRECT_CONFIGURATION" else state == 1
    return problems
