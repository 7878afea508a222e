"""PCIe, NVLink and the link to a Grace CPU: what `FIELDS` does not hold, since it takes other calls or several links."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from trackside_daemon.nvml.readers.calls import MOST, ask, ask_all, series
from trackside_daemon.nvml.readers.fields import Field, ask_fields, ask_links, ask_sum, is_taken

if TYPE_CHECKING:
    from trackside_daemon.nvml.readers.unsupported import Refusals
    from trackside_daemon.nvml.reading import Value

NVLINKS = Field(91, "nvlink_links")
SPEED = Field(164, "nvlink_speed_bytes_per_second")
COMMON_SPEED = Field(90, "nvlink_speed_bytes_per_second")
MB = 1e6

HOPPER_ERRORS = tuple(
    Field(number, "nvlink_errors_total", (error,))
    for number, error in ((161, "replay"), (162, "recovery"), (163, "crc"))
)
LINK_BYTES = (
    (
        Field(138, "nvlink_link_transmit_bytes_total", per=1 / 1024),
        Field(202, "nvlink_link_transmit_bytes_total"),
    ),
    (
        Field(139, "nvlink_link_receive_bytes_total", per=1 / 1024),
        Field(204, "nvlink_link_receive_bytes_total"),
    ),
)
"""By direction: the field up to NVLink 4, and that of NVLink 5."""

C2C_LINKS = Field(170, "c2c_links")
C2C_UP = Field(171, "c2c_link_up")
C2C_ERRORS = tuple(
    Field(number, "c2c_errors_total", (error,))
    for number, error in ((231, "interrupt"), (232, "replay"), (233, "replay_b2b"))
)


def pcie(nvml: Any, handle: Any, refusals: Refusals) -> list[Value]:
    """``nvmlDeviceGetCurrPcieLink...``, ``nvmlDeviceGetMaxPcieLink...`` and ``nvmlDeviceGetPcieReplayCounter``."""
    functions = {
        "pcie_link_generation": nvml.nvmlDeviceGetCurrPcieLinkGeneration,
        "pcie_link_max_generation": nvml.nvmlDeviceGetMaxPcieLinkGeneration,
        "pcie_link_width_lanes": nvml.nvmlDeviceGetCurrPcieLinkWidth,
        "pcie_link_max_width_lanes": nvml.nvmlDeviceGetMaxPcieLinkWidth,
        "pcie_replays_total": nvml.nvmlDeviceGetPcieReplayCounter,
    }
    return ask_all(nvml, refusals, ((family, (), partial(read, handle)) for family, read in functions.items()))


def pcie_throughput(nvml: Any, handle: Any, refusals: Refusals) -> list[Value]:
    """``nvmlDeviceGetPcieThroughput``, in KB/s over the 20 ms for which it blocks, in each direction."""

    def rate(counter: int) -> float:
        return float(nvml.nvmlDeviceGetPcieThroughput(handle, counter) * 1000)

    return ask_all(
        nvml,
        refusals,
        (
            ("pcie_transmit_bytes_per_second", (), partial(rate, nvml.NVML_PCIE_UTIL_TX_BYTES)),
            ("pcie_receive_bytes_per_second", (), partial(rate, nvml.NVML_PCIE_UTIL_RX_BYTES)),
        ),
    )


def nvlink(nvml: Any, handle: Any, refusals: Refusals) -> list[Value]:
    """How many NVLinks there are, how many are up, how fast the slowest of those is, and Hopper's errors.

    Those are of the links' data layer: its CRC errors, and its replays and recoveries where `FIELDS` has no totals.
    ``nvmlDeviceGetNvLinkState`` of each link; the speed in MB/s. Bytes and the errors of others are in `FIELDS`.
    """
    count = _count(nvml, handle, NVLINKS, refusals)
    if not count:
        return [] if count is None else [("nvlink_links", (), 0)]
    values: list[Value] = [("nvlink_links", (), count)]
    states = _states(nvml, handle, count, refusals)
    if states:
        values.append(("nvlink_links_up", (), sum(states.values())))
    up = [link for link, state in states.items() if state]
    speeds = [speed for speed in ask_links(nvml, handle, SPEED, up, refusals).values() if speed]
    if up and not speeds:
        speeds = [speed for _, _, speed in ask_fields(nvml, handle, (COMMON_SPEED,), refusals)]
    if speeds:
        values.append((SPEED.family, (), min(speeds) * MB))
    return values + _sums(nvml, handle, HOPPER_ERRORS, count, refusals)


def links(nvml: Any, handle: Any, refusals: Refusals) -> list[Value]:
    """Each NVLink: whether it is up, and the bytes of data that it carried, in KiB up to NVLink 4."""
    count = _count(nvml, handle, NVLINKS, refusals)
    if not count:
        return []
    values: list[Value] = [
        ("nvlink_up", (str(link),), state) for link, state in _states(nvml, handle, count, refusals).items()
    ]
    for old, new in LINK_BYTES:
        for field in (old, new):
            carried = ask_links(nvml, handle, field, range(count), refusals)
            if carried and is_taken(field, refusals):
                values += [(field.family, (str(link),), value) for link, value in carried.items()]
    return values


def c2c(nvml: Any, handle: Any, refusals: Refusals) -> list[Value]:
    """The links to the CPU of a Grace superchip, and their errors, summed over the links."""
    count = _count(nvml, handle, C2C_LINKS, refusals)
    if not count:
        return []
    states = ask_links(nvml, handle, C2C_UP, range(count), refusals)
    up: list[Value] = [(C2C_UP.family, (str(link),), state) for link, state in states.items()]
    return up + _sums(nvml, handle, C2C_ERRORS, count, refusals)


def _count(nvml: Any, handle: Any, field: Field, refusals: Refusals) -> int | None:
    for _, _, count in ask_fields(nvml, handle, (field,), refusals):
        if count <= MOST:
            return int(count)
        refusals.add(field.name, "the driver says more than any GPU has")
    return None


def _states(nvml: Any, handle: Any, count: int, refusals: Refusals) -> dict[int, float]:
    """1 or 0 of each link that tells whether it is up."""

    def state(link: int) -> float:
        return float(bool(nvml.nvmlDeviceGetNvLinkState(handle, link)))

    told = {link: ask(nvml, refusals, series("nvlink_up", (str(link),)), partial(state, link)) for link in range(count)}
    return {link: up for link, up in told.items() if up is not None}


def _sums(nvml: Any, handle: Any, fields: tuple[Field, ...], count: int, refusals: Refusals) -> list[Value]:
    """Each field over all links."""
    return [value for field in fields for value in ask_sum(nvml, handle, field, count, refusals)]
