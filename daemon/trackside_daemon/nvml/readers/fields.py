"""Readers of ``nvmlDeviceGetFieldValues``: many fields in one call, each with a separate status."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import force_setattr, replace

from trackside_daemon.nvml.readers.identity import UNKNOWN
from trackside_daemon.nvml.readers.unsupported import Unsupported, lasts, series
from trackside_daemon.nvml.reading import Value

ALL_LINKS = 0xFFFFFFFF  # scope in which an NVLink counter is the sum over all links
MODULE = 1  # scope in which power is that of a superchip's GPU and CPU together

# NVML does not report whether the PCIe counters have 32 or 64 bits. Counters of 32 bits wrap too fast to follow, so a
# counter is used only after it has passed 32 bits.
COUNTER_32_BITS = (
    "its counter has not passed 32 bits, in which it would wrap within 0.1 s of traffic; "
    "--collector.gpu.extra pcie-throughput measures a rate"
)
ZERO_DEGREES = "the driver reports 0 degrees, which no memory has"

# Members of the union that holds a value, by `valueType`.
UNION_MEMBERS = dict(enumerate(("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")))


class Field(msgspec.Struct, frozen=True, eq=False):
    """A field and its series."""

    number: int  # number in ``NVML_FI_DEV_...``, which no driver changes
    family: str
    labels: tuple[str, ...] = ()  # values of the family's extra labels
    divisor: float = 1  # number of the field's units in one of the family's
    scope: int = 0  # a link, `ALL_LINKS` or `MODULE`, for the fields that have scopes
    minimum: float = -math.inf  # lowest usable value
    below_minimum: str = ""  # reason why a lower value is not used
    series: str = ""  # set from the others: name of the series with its labels
    name: str = ""  # the same: name among the unsupported calls: ``power_watts from field 186``

    def __post_init__(self) -> None:
        force_setattr(self, "series", series(self.family, self.labels))
        force_setattr(self, "name", f"{self.series} from field {self.number}")


POWER = Field(186, "power_watts", divisor=1000)
PCIE_ERRORS = {
    169: "l0_to_recovery",
    173: "correctable",
    174: "nak_received",
    175: "receiver",
    176: "bad_tlp",
    177: "nak_sent",
    178: "bad_dllp",
    179: "non_fatal",
    180: "fatal",
    181: "unsupported_request",
    182: "lcrc",
    183: "lane",
}
NVLINK_ERRORS = {38: "crc_flit", 45: "crc_data", 52: "replay", 59: "recovery", 160: "ecc"}
NVLINK5_ERRORS = {
    206: "malformed",
    207: "buffer_overrun",
    208: "receive",
    209: "remote",
    210: "general",
    211: "integrity",
    212: "discard",
    214: "recovery_failed",
    219: "effective",
    221: "symbol",
}
LIMIT_REASONS = {
    74: "sw_power_cap",
    75: "thermal",
    76: "sync_boost",
    77: "board_limit",
    78: "low_utilization",
    79: "reliability",
    269: "sw_thermal",
    270: "hw_thermal",
    271: "hw_power_brake",
}
POWER_LIMITS = {187: "min", 188: "max", 189: "default", 192: "requested"}

# Fields that no other reader reads, in the order of preference: if two have the same series, the first that answers
# becomes its source. In a cycle in which the source does not answer, the series is missing.
FIELDS = (
    POWER,
    Field(185, "power_average_watts", divisor=1000),
    Field(186, "module_power_watts", divisor=1000, scope=MODULE),
    Field(82, "temperature_celsius", ("memory",), minimum=1, below_minimum=ZERO_DEGREES),
    Field(297, "mma_stall_ratio", divisor=100),
    *(Field(number, "clock_limited_seconds_total", (reason,), divisor=1e9) for number, reason in LIMIT_REASONS.items()),
    Field(197, "pcie_transmit_bytes_total", minimum=2**32, below_minimum=COUNTER_32_BITS),
    Field(198, "pcie_receive_bytes_total", minimum=2**32, below_minimum=COUNTER_32_BITS),
    Field(138, "nvlink_transmit_bytes_total", divisor=1 / 1024, scope=ALL_LINKS),
    Field(139, "nvlink_receive_bytes_total", divisor=1 / 1024, scope=ALL_LINKS),
    Field(202, "nvlink_transmit_bytes_total", scope=ALL_LINKS),
    Field(204, "nvlink_receive_bytes_total", scope=ALL_LINKS),
    Field(230, "recovery_action"),
)

# Fields that change rarely.
SLOW_FIELDS = (
    *(Field(number, "power_limit_watts", (limit,), divisor=1000) for number, limit in POWER_LIMITS.items()),
    *(Field(number, "pcie_errors_total", (error,)) for number, error in PCIE_ERRORS.items()),
    *(Field(number, "nvlink_errors_total", (error,)) for number, error in NVLINK_ERRORS.items()),
    *(Field(number, "nvlink_errors_total", (error,), scope=ALL_LINKS) for number, error in NVLINK5_ERRORS.items()),
)


def fields(nvml: Any, handle: Any, unsupported: Unsupported) -> list[Value]:
    """Read the `FIELDS` that this GPU supports, in one call."""
    return read_fields(nvml, handle, FIELDS, unsupported)


def slow_fields(nvml: Any, handle: Any, unsupported: Unsupported) -> list[Value]:
    """Read the `SLOW_FIELDS` that this GPU supports, in one call."""
    return read_fields(nvml, handle, SLOW_FIELDS, unsupported)


def unknown_type(kind: int) -> str:
    """Return the reason why a value of a type that is not in `UNION_MEMBERS` is missing."""
    return f"value type {kind} is newer than this daemon and its pynvml; upgrade them"


def read_fields(nvml: Any, handle: Any, wanted: Iterable[Field], unsupported: Unsupported) -> list[Value]:
    """Return the series of the fields that answer, and record the unsupported ones.

    Raises:
        NVMLError: The whole call failed.
    """
    readable = [field for field in wanted if is_readable(field, unsupported)]
    values: list[Value] = []
    for field, number, why in _field_values(nvml, handle, readable):
        if number is None:
            unsupported.add(field.name, why)
        elif is_source(field, unsupported):
            values.append((field.family, field.labels, number / field.divisor))
    return values


def is_readable(field: Field, unsupported: Unsupported) -> bool:
    """Return whether the field is supported and its series has no other source."""
    return field.name not in unsupported and unsupported.sources.get(field.series, field.name) == field.name


def is_source(field: Field, unsupported: Unsupported) -> bool:
    """Return whether the field, which has answered, is the source of its series; the first to answer becomes it."""
    return unsupported.sources.setdefault(field.series, field.name) == field.name


def read_field_by_link(
    nvml: Any, handle: Any, field: Field, links: Iterable[int], unsupported: Unsupported
) -> dict[int, float]:
    """Return the field of each link that answers; if none does, record the field as unsupported.

    Raises:
        NVMLError: The whole call failed.
    """
    if not is_readable(field, unsupported):
        return {}
    answers = list(_field_values(nvml, handle, [replace(field, scope=link) for link in links]))
    values = {answered.scope: number / field.divisor for answered, number, _ in answers if number is not None}
    if answers and not values:
        unsupported.add(field.name, answers[0][2])
    return values


def read_field_sum(nvml: Any, handle: Any, field: Field, count: int, unsupported: Unsupported) -> list[Value]:
    """Return the sum of the field over those of *count* links that have it.

    Raises:
        NVMLError: The whole call failed.
    """
    if not is_readable(field, unsupported):
        return []
    links = unsupported.summed_links.get(field.name)
    scoped = [replace(field, scope=link) for link in links or range(count)]
    answers = list(_field_values(nvml, handle, scoped))
    values = {answered.scope: number / field.divisor for answered, number, _ in answers if number is not None}
    failed = [why for _, number, why in answers if number is None]
    settled = all(lasts(why) for why in failed)
    if settled and values and not links:
        unsupported.summed_links[field.name] = tuple(values)  # the other links do not have it
    elif failed:
        # Without a link that it had before, the sum would fall: there is none in this cycle.
        lasting = next(filter(lasts, failed), None)
        if lasting and (links or settled):
            unsupported.summed_links.pop(field.name, None)
            unsupported.add(field.name, lasting)
        return []
    return [(field.family, field.labels, sum(values.values()))] if is_source(field, unsupported) else []


def _field_values(nvml: Any, handle: Any, wanted: Sequence[Field]) -> Iterator[tuple[Field, float | None, str]]:
    """Yield each field with its number, or with None and the reason.

    A number of 32 bits that is unknown to the driver becomes infinite, which is beyond the bounds of every family.
    """
    if not wanted:
        return
    answers = nvml.nvmlDeviceGetFieldValues(handle, [(field.number, field.scope) for field in wanted])
    for field, answer in zip(wanted, answers, strict=True):
        status, kind = answer.nvmlReturn, answer.valueType
        if status == nvml.NVML_ERROR_GPU_IS_LOST:
            raise nvml.NVMLError(status)
        number = getattr(answer.value, UNION_MEMBERS.get(kind, ""), None)
        if kind == nvml.NVML_VALUE_TYPE_UNSIGNED_INT and number == UNKNOWN:
            number = math.inf  # a number of 64 bits with this value may be a count
        if status:
            yield field, None, nvml.result(status)
        elif number is None:
            yield field, None, unknown_type(kind)
        elif number < field.minimum:
            yield field, None, field.below_minimum
        else:
            yield field, number, ""
