"""Fields: many in one call, each with a separate status and type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pynvml
import pytest
from nvml.answers import DOUBLE, SINT, SLL, UINT, ULL, ULONG, USHORT, Refused

from trackside_daemon.model.families.gpu import FAMILIES
from trackside_daemon.nvml.readers.fields import (
    ALL_LINKS,
    COUNTER_32_BITS,
    FIELDS,
    MODULE,
    SLOW_FIELDS,
    ZERO_DEGREES,
    Field,
    fields,
    read_field_by_link,
    slow_fields,
)
from trackside_daemon.nvml.readers.links import C2C_ERRORS, C2C_UP, HOPPER_ERRORS, LINK_BYTES, NVLINKS, SPEED
from trackside_daemon.nvml.readers.thermal import MARGINS
from trackside_daemon.nvml.readers.unsupported import PROBE_SECONDS, Unsupported
from trackside_daemon.nvml.worker.library import CountedNvml

if TYPE_CHECKING:
    from scripted_workers import Clock

NOT_SUPPORTED, NO_PERMISSION, INVALID_ARGUMENT, GPU_IS_LOST, RESET_REQUIRED = 3, 4, 2, 15, 16


class Gpu:
    """The first GPU, and its unsupported calls."""

    def __init__(self, clock: Clock) -> None:
        self.nvml = CountedNvml(pynvml)
        self.handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        self.unsupported = Unsupported(clock)

    def ask(self) -> dict[str, float]:
        """Return all series of fields, by ``family:label``."""
        asked = (self.nvml, self.handle, self.unsupported)
        values = [*fields(*asked), *slow_fields(*asked)]
        return {":".join((family, *labels)): value for family, labels, value in values}

    def read_field_by_link(self, field: Field, links: int) -> dict[int, float]:
        """Return the field of each of the first *links* links."""
        return read_field_by_link(self.nvml, self.handle, field, range(links), self.unsupported)


@pytest.fixture
def gpu(library: Any, clock: Clock) -> Gpu:
    return Gpu(clock)


@pytest.mark.parametrize(
    ("field", "number", "series"),
    [
        ((185, 0), 350_500, {"power_average_watts": 350.5}),
        ((186, 0), 412_500, {"power_watts": 412.5}),
        ((186, MODULE), 900_000, {"module_power_watts": 900}),
        ((187, 0), 200_000, {"power_limit_watts:min": 200}),
        ((188, 0), 700_000, {"power_limit_watts:max": 700}),
        ((189, 0), 700_000, {"power_limit_watts:default": 700}),
        ((192, 0), 650_000, {"power_limit_watts:requested": 650}),
        ((82, 0), 71, {"temperature_celsius:memory": 71}),
        ((297, 0), 12, {"mma_stall_ratio": 0.12}),
        ((74, 0), 1_500_000_000, {"clock_limited_seconds_total:sw_power_cap": 1.5}),
        ((270, 0), 2_000_000_000, {"clock_limited_seconds_total:hw_thermal": 2}),
        ((169, 0), 7, {"pcie_errors_total:l0_to_recovery": 7}),
        ((180, 0), 1, {"pcie_errors_total:fatal": 1}),
        ((138, ALL_LINKS), 2**40, {"nvlink_transmit_bytes_total": 2**50}),
        ((139, ALL_LINKS), 3, {"nvlink_receive_bytes_total": 3072}),
        ((202, ALL_LINKS), 2**60, {"nvlink_transmit_bytes_total": 2**60}),
        ((204, ALL_LINKS), 5, {"nvlink_receive_bytes_total": 5}),
        ((38, 0), 4, {"nvlink_errors_total:crc_flit": 4}),
        ((160, 0), 6, {"nvlink_errors_total:ecc": 6}),
        ((208, ALL_LINKS), 8, {"nvlink_errors_total:receive": 8}),
        ((230, 0), 2, {"recovery_action": 2}),
    ],
)
def test_each_field_is_in_base_units(
    library: Any, gpu: Gpu, field: tuple[int, int], number: int, series: dict[str, float]
) -> None:
    library.fields[field] = (ULL, number)
    assert gpu.ask() == series


@pytest.mark.parametrize(
    ("kind", "number"), [(DOUBLE, 61.5), (UINT, 61), (ULONG, 62), (ULL, 63), (SLL, -5), (SINT, -6), (USHORT, 64)]
)
def test_a_value_is_read_by_its_type(library: Any, gpu: Gpu, kind: int, number: float) -> None:
    library.fields[230, 0] = (kind, number)
    assert gpu.ask() == {"recovery_action": number}


def test_a_type_that_is_not_known_yet_is_refused_in_words(library: Any, gpu: Gpu) -> None:
    library.fields[82, 0] = (9, 61)
    assert not gpu.ask()
    assert "value type 9 is newer" in gpu.unsupported.reasons()["temperature_celsius{memory} from field 82"]


def test_all_fields_take_one_call_and_those_that_change_seldom_another(library: Any, gpu: Gpu) -> None:
    gpu.ask()
    assert [len(asked) for asked in library.asked] == [len(FIELDS), len(SLOW_FIELDS)]


def test_a_refused_field_is_left_out_until_it_is_probed_again(library: Any, gpu: Gpu, clock: Clock) -> None:
    library.fields[82, 0] = (UINT, 61)
    gpu.ask()
    gpu.ask()
    clock.now += PROBE_SECONDS + 1
    gpu.ask()
    assert library.asked[2] == [(82, 0)]
    assert len(library.asked[3]) == len(FIELDS)


def test_nothing_is_called_when_every_field_is_refused(library: Any, gpu: Gpu) -> None:
    gpu.ask()
    before = len(library.asked)
    gpu.ask()
    assert len(library.asked) == before


def test_a_field_that_failed_once_is_retried(library: Any, gpu: Gpu) -> None:
    library.fields[82, 0] = Refused(RESET_REQUIRED)
    assert not gpu.ask()
    library.fields[82, 0] = (UINT, 61)
    assert gpu.ask() == {"temperature_celsius:memory": 61}


def test_a_field_reports_why_it_is_refused(library: Any, gpu: Gpu) -> None:
    library.fields |= {(82, 0): Refused(NO_PERMISSION), (230, 0): Refused(INVALID_ARGUMENT)}
    gpu.ask()
    assert gpu.unsupported.reasons()["temperature_celsius{memory} from field 82"].startswith("no permission")
    assert gpu.unsupported.reasons()["recovery_action from field 230"] == "this GPU does not support this call"


def test_a_field_that_reports_a_loss_reports_it_of_the_gpu(library: Any, gpu: Gpu) -> None:
    library.fields[82, 0] = Refused(GPU_IS_LOST)
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        gpu.ask()


def test_of_two_fields_that_are_the_same_series_the_first_is_used(library: Any, gpu: Gpu) -> None:
    library.fields |= {(138, ALL_LINKS): (ULL, 2), (202, ALL_LINKS): (ULL, 9)}
    assert gpu.ask() == {"nvlink_transmit_bytes_total": 2048}


@pytest.mark.parametrize(("kind", "number"), [(UINT, 3_020_371_496), (ULL, 2**32 - 1)])
def test_pcie_bytes_that_may_have_32_bits_are_refused_in_words(library: Any, gpu: Gpu, kind: int, number: int) -> None:
    library.fields[197, 0] = (kind, number)
    assert not gpu.ask()
    assert gpu.unsupported.reasons()["pcie_transmit_bytes_total from field 197"] == COUNTER_32_BITS


def test_a_memory_of_0_degrees_was_not_measured(library: Any, gpu: Gpu) -> None:
    library.fields[82, 0] = (UINT, 0)
    assert not gpu.ask()
    assert gpu.unsupported.reasons()["temperature_celsius{memory} from field 82"] == ZERO_DEGREES


def test_pcie_bytes_beyond_32_bits_are_reported(library: Any, gpu: Gpu) -> None:
    library.fields |= {(197, 0): (ULL, 2**32), (198, 0): (ULL, 2**54)}
    assert gpu.ask() == {"pcie_transmit_bytes_total": 2**32, "pcie_receive_bytes_total": 2**54}


def test_a_field_of_links_is_refused_when_no_link_answers(library: Any, gpu: Gpu) -> None:
    field = Field(161, "nvlink_errors_total", ("replay",))
    library.fields[161, 1] = (ULL, 7)
    assert gpu.read_field_by_link(field, 2) == {1: 7}
    assert field.name not in gpu.unsupported
    del library.fields[161, 1]
    assert gpu.read_field_by_link(field, 2) == {}
    assert field.name in gpu.unsupported
    gpu.read_field_by_link(field, 2)
    assert len(library.asked) == 2


def test_every_field_is_of_a_family_with_its_labels() -> None:
    linked = (C2C_UP, LINK_BYTES[0][0], LINK_BYTES[0][1], LINK_BYTES[1][0], LINK_BYTES[1][1])
    alone = (*FIELDS, *MARGINS, *HOPPER_ERRORS, *C2C_ERRORS, NVLINKS, SPEED)
    for labels, some in ((0, alone), (1, linked)):
        for field in some:
            assert len(FAMILIES[field.family].metric.labels) == 2 + len(field.labels) + labels, field
