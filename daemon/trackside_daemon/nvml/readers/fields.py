"""What ``nvmlDeviceGetFieldValues`` answers: many fields in one call, each with its own status."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from trackside_daemon.nvml.readers.calls import series
from trackside_daemon.nvml.readers.identity import UNKNOWN
from trackside_daemon.nvml.readers.unsupported import lasts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from trackside_daemon.nvml.readers.unsupported import Refusals
    from trackside_daemon.nvml.reading import Value

ALL_LINKS = 0xFFFFFFFF
"""The scope in which an NVLink counter is the sum over all links."""

MODULE = 1
"""The scope in which power is that of the GPU and the CPU beside it."""

NARROW = (
    "its counter has not passed 32 bits, in which it would wrap within 0.1 s of traffic; "
    "--collector.gpu.extra pcie-throughput measures a rate"
)
UNMEASURED = "the driver answers 0 degrees, which no memory has"

MEMBERS = dict(enumerate(("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")))
"""Of the union that holds a value, by ``valueType``."""


@dataclasses.dataclass(frozen=True, eq=False)
class Field:
    """A field and the series that it is.

    Attributes:
        number: As in ``NVML_FI_DEV_...``, which a driver never changes.
        labels: Values of the family's extra labels.
        per: How many of the field's units make one of the family's.
        scope: A link, `ALL_LINKS` or `MODULE`, for the fields that have scopes.
        least: While it is lower it is refused, with the words of *why*. NVML does not say whether the counters of PCIe
            have 32 or 64 bits. Of 32 they wrap faster than they can be followed, so they have to pass those first.
        series: The family with its labels.
        name: What a refusal calls it: ``power_watts from field 186``.
    """

    number: int
    family: str
    labels: tuple[str, ...] = ()
    per: float = 1
    scope: int = 0
    least: float = -math.inf
    why: str = ""
    series: str = dataclasses.field(init=False)
    name: str = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "series", series(self.family, self.labels))
        object.__setattr__(self, "name", f"{self.series} from field {self.number}")


POWER = Field(186, "power_watts", per=1000)
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
LIMITED = {
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
LIMITS = {187: "min", 188: "max", 189: "default", 192: "requested"}

FIELDS = (
    POWER,
    Field(185, "power_average_watts", per=1000),
    Field(186, "module_power_watts", per=1000, scope=MODULE),
    Field(82, "temperature_celsius", ("memory",), least=1, why=UNMEASURED),
    Field(297, "mma_stall_ratio", per=100),
    *(Field(number, "clock_limited_seconds_total", (reason,), per=1e9) for number, reason in LIMITED.items()),
    Field(197, "pcie_transmit_bytes_total", least=2**32, why=NARROW),
    Field(198, "pcie_receive_bytes_total", least=2**32, why=NARROW),
    Field(138, "nvlink_transmit_bytes_total", per=1 / 1024, scope=ALL_LINKS),
    Field(139, "nvlink_receive_bytes_total", per=1 / 1024, scope=ALL_LINKS),
    Field(202, "nvlink_transmit_bytes_total", scope=ALL_LINKS),
    Field(204, "nvlink_receive_bytes_total", scope=ALL_LINKS),
    Field(230, "recovery_action"),
)
"""All that have no reader of their own. Where two are the same series the first that answers is taken, and no other
later: in a cycle in which it does not answer there is no such series."""

SLOW_FIELDS = (
    *(Field(number, "power_limit_watts", (limit,), per=1000) for number, limit in LIMITS.items()),
    *(Field(number, "pcie_errors_total", (error,)) for number, error in PCIE_ERRORS.items()),
    *(Field(number, "nvlink_errors_total", (error,)) for number, error in NVLINK_ERRORS.items()),
    *(Field(number, "nvlink_errors_total", (error,), scope=ALL_LINKS) for number, error in NVLINK5_ERRORS.items()),
)
"""Those of them that change seldom."""


def fields(nvml: Any, handle: Any, refusals: Refusals) -> list[Value]:
    """Those of `FIELDS` that this GPU has, in one call."""
    return ask_fields(nvml, handle, FIELDS, refusals)


def slow_fields(nvml: Any, handle: Any, refusals: Refusals) -> list[Value]:
    """Those of `SLOW_FIELDS` that this GPU has, in one call."""
    return ask_fields(nvml, handle, SLOW_FIELDS, refusals)


def newer(kind: int) -> str:
    """Why a value of a type that `MEMBERS` does not know is not told."""
    return f"value type {kind} is newer than this daemon and its pynvml; upgrade them"


def ask_fields(nvml: Any, handle: Any, asked: Iterable[Field], refusals: Refusals) -> list[Value]:
    """The series that are answered. What is refused is not asked again until its refusal ends.

    Raises:
        NVMLError: The whole call was refused.
    """
    values: list[Value] = []
    for field, number, why in _answers(nvml, handle, [field for field in asked if is_asked(field, refusals)]):
        if number is None:
            refusals.add(field.name, why)
        elif is_taken(field, refusals):
            values.append((field.family, field.labels, number / field.per))
    return values


def is_asked(field: Field, refusals: Refusals) -> bool:
    """Whether the field is neither refused nor another than the one that its series comes from."""
    return field.name not in refusals and refusals.chosen.get(field.series, field.name) == field.name


def is_taken(field: Field, refusals: Refusals) -> bool:
    """Whether its series comes from the field, which has answered: from the first that did."""
    return refusals.chosen.setdefault(field.series, field.name) == field.name


def ask_links(nvml: Any, handle: Any, field: Field, links: Iterable[int], refusals: Refusals) -> dict[int, float]:
    """The field of each link that answers; it is refused when none does.

    Raises:
        NVMLError: The whole call was refused.
    """
    if not is_asked(field, refusals):
        return {}
    answers = list(_answers(nvml, handle, [dataclasses.replace(field, scope=link) for link in links]))
    values = {one.scope: number / field.per for one, number, _ in answers if number is not None}
    if answers and not values:
        refusals.add(field.name, answers[0][2])
    return values


def ask_sum(nvml: Any, handle: Any, field: Field, count: int, refusals: Refusals) -> list[Value]:
    """The field over all of *count* links that know it; nothing while one of those does not answer, as it would fall.

    Raises:
        NVMLError: The whole call was refused.
    """
    if not is_asked(field, refusals):
        return []
    known = refusals.links.get(field.name)
    answers = list(_answers(nvml, handle, [dataclasses.replace(field, scope=link) for link in known or range(count)]))
    values = {one.scope: number / field.per for one, number, _ in answers if number is not None}
    refused = [why for _, number, why in answers if number is None]
    settled = all(lasts(why) for why in refused)
    if settled and values and not known:
        refusals.links[field.name] = tuple(values)  # the other links do not have it
    elif refused:
        lasting = next(filter(lasts, refused), None)
        if lasting and (known or settled):
            refusals.links.pop(field.name, None)
            refusals.add(field.name, lasting)
        return []
    return [(field.family, field.labels, sum(values.values()))] if is_taken(field, refusals) else []


def _answers(nvml: Any, handle: Any, asked: Sequence[Field]) -> Iterator[tuple[Field, float | None, str]]:
    """Each field with its number, or with None and why there is none.

    A number of 32 bits that the driver does not know is infinite, which is beyond the bounds of every family.
    """
    if not asked:
        return
    answers = nvml.nvmlDeviceGetFieldValues(handle, [(field.number, field.scope) for field in asked])
    for field, answer in zip(asked, answers, strict=True):
        status, kind = answer.nvmlReturn, answer.valueType
        if status == nvml.NVML_ERROR_GPU_IS_LOST:
            raise nvml.NVMLError(status)
        number = getattr(answer.value, MEMBERS.get(kind, ""), None)
        if kind == nvml.NVML_VALUE_TYPE_UNSIGNED_INT and number == UNKNOWN:
            number = math.inf  # of 64 bits it may be a count
        if status:
            yield field, None, nvml.result(status)
        elif number is None:
            yield field, None, newer(kind)
        elif number < field.least:
            yield field, None, field.why
        else:
            yield field, number, ""
