"""PCIe, NVLink, the link to a Grace CPU, and the fabric, through the real pynvml."""

from __future__ import annotations

import itertools
from typing import Any

import pynvml
import pytest
from nvml.answers import UINT, ULL, Refused, target
from nvml.first import of, read

from trackside_daemon.nvml.reader_groups import SLOW_SECONDS, selected_groups
from trackside_daemon.nvml.readers.fields import ALL_LINKS
from trackside_daemon.nvml.worker.driver import Driver

INVALID_ARGUMENT, NOT_SUPPORTED, MISMATCH, UNKNOWN = 2, 3, 25, 999
COMPLETED = 3


@pytest.fixture(autouse=True)
def one_gpu(library: Any) -> None:
    library.count = 1


def test_a_pcie_link_is_reported_with_the_best_that_it_could_be(library: Any) -> None:
    library.values |= {
        "nvmlDeviceGetCurrPcieLinkGeneration": 1,
        "nvmlDeviceGetMaxPcieLinkGeneration": 5,
        "nvmlDeviceGetCurrPcieLinkWidth": 8,
        "nvmlDeviceGetMaxPcieLinkWidth": 16,
        "nvmlDeviceGetPcieReplayCounter": 4,
    }
    assert of(read(), "pcie_") == {
        "pcie_link_generation": 1,
        "pcie_link_max_generation": 5,
        "pcie_link_width_lanes": 8,
        "pcie_link_max_width_lanes": 16,
        "pcie_replays_total": 4,
    }


def test_pcie_throughput_is_in_bytes_and_read_only_on_request(library: Any) -> None:
    library.values |= {("nvmlDeviceGetPcieThroughput", 0): 488, ("nvmlDeviceGetPcieThroughput", 1): 341}
    assert of(read("pcie-throughput"), "pcie_") == {
        "pcie_transmit_bytes_per_second": 488_000,
        "pcie_receive_bytes_per_second": 341_000,
    }
    assert not of(read(), "pcie_")


def test_nvlinks_are_counted_and_the_slowest_that_is_up_gives_the_speed(library: Any) -> None:
    library.fields |= {(91, 0): (UINT, 3), (164, 0): (UINT, 26_562), (164, 1): (UINT, 13_281), (164, 2): (UINT, 1)}
    library.values |= {("nvmlDeviceGetNvLinkState", link): state for link, state in ((0, 1), (1, 1), (2, 0))}
    assert of(read(), "nvlink_") == {
        "nvlink_links": 3,
        "nvlink_links_up": 2,
        "nvlink_speed_bytes_per_second": 13_281e6,
    }


def test_the_common_speed_stands_in_where_links_do_not_report_theirs(library: Any) -> None:
    library.fields |= {(91, 0): (UINT, 1), (90, 0): (UINT, 25_781)}
    library.values["nvmlDeviceGetNvLinkState"] = 1
    assert of(read(), "nvlink_speed") == {"nvlink_speed_bytes_per_second": 25_781e6}


def test_a_gpu_without_nvlink_has_none_and_nothing_else_of_it(library: Any) -> None:
    library.fields[91, 0] = (UINT, 0)
    assert of(read("links"), "nvlink_") == {"nvlink_links": 0}


def test_a_gpu_that_does_not_know_nvlink_reports_nothing_of_it(library: Any) -> None:
    gpu = read("links")
    assert not of(gpu, "nvlink_")
    assert "nvlink_links from field 91" in gpu.unsupported


def test_links_that_do_not_report_their_state_are_not_called_down(library: Any) -> None:
    library.fields[91, 0] = (UINT, 2)
    library.values["nvmlDeviceGetNvLinkState"] = Refused(UNKNOWN)
    assert of(read(), "nvlink_") == {"nvlink_links": 2}


class Clock:
    """Clock that advances so that each cycle reads every reader."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += SLOW_SECONDS
        return self.now


def each_cycle(library: Any, start: str, *changes: tuple[tuple[int, int], Any], extra: str = "") -> list[Any]:
    """Return the series that start with *start* in a first cycle, and in one after each change of a field."""
    driver = Driver(pynvml, selected_groups([extra]), clock=Clock())
    reported = [of(driver.read().gpus[0], start)]
    for field, answer in changes:
        library.fields[field] = answer
        reported.append(of(driver.read().gpus[0], start))
    return reported


def test_a_sum_over_links_is_not_reported_in_a_cycle_in_which_one_does_not_answer(library: Any) -> None:
    library.fields |= {(91, 0): (UINT, 4), **{(161, link): (ULL, 100) for link in range(4)}}
    crashed, back = ((161, 2), Refused(UNKNOWN)), ((161, 2), (ULL, 101))
    assert each_cycle(library, "nvlink_errors", crashed, back) == [
        {"nvlink_errors_total:replay": 400},
        {},
        {"nvlink_errors_total:replay": 401},
    ]


def test_a_sum_waits_for_a_link_that_does_not_answer_at_first(library: Any) -> None:
    library.fields |= {(91, 0): (UINT, 2), (161, 0): (ULL, 1), (161, 1): Refused(UNKNOWN)}
    assert each_cycle(library, "nvlink_errors", ((161, 1), (ULL, 2))) == [{}, {"nvlink_errors_total:replay": 3}]


def test_a_link_that_does_not_know_the_field_at_first_is_never_part_of_the_sum(library: Any) -> None:
    library.fields |= {(91, 0): (UINT, 2), (161, 0): (ULL, 1)}
    assert each_cycle(library, "nvlink_errors", ((161, 1), (ULL, 9))) == [{"nvlink_errors_total:replay": 1}] * 2


def test_a_link_that_knows_the_field_no_longer_has_the_sum_refused(library: Any) -> None:
    library.fields |= {(91, 0): (UINT, 2), (161, 0): (ULL, 1), (161, 1): (ULL, 1)}
    driver = Driver(pynvml, clock=Clock())
    driver.read()
    library.fields[161, 1] = Refused(NOT_SUPPORTED)
    gpu = driver.read().gpus[0]
    assert not of(gpu, "nvlink_errors")
    assert "does not support" in gpu.unsupported["nvlink_errors_total{replay} from field 161"]


@pytest.mark.parametrize("status", [INVALID_ARGUMENT, NOT_SUPPORTED, UNKNOWN])
def test_a_total_of_errors_is_not_replaced_by_the_sum_over_links(library: Any, status: int) -> None:
    library.fields |= {(91, 0): (UINT, 1), (52, 0): (ULL, 5), (161, 0): (ULL, 700)}
    assert each_cycle(library, "nvlink_errors", ((52, 0), Refused(status))) == [{"nvlink_errors_total:replay": 5}, {}]


@pytest.mark.parametrize("status", [INVALID_ARGUMENT, NOT_SUPPORTED, UNKNOWN])
@pytest.mark.parametrize(
    ("start", "extra", "links"), [("nvlink_transmit", "", ALL_LINKS), ("nvlink_link_t", "links", 0)]
)
def test_bytes_come_from_one_field_only(library: Any, status: int, start: str, extra: str, links: int) -> None:
    library.fields |= {(91, 0): (UINT, 1), (138, links): (ULL, 1), (202, links): (ULL, 5000)}
    (first, *_), *others = (
        list(reported.values()) for reported in each_cycle(library, start, ((138, links), Refused(status)), extra=extra)
    )
    assert (first, others) == (1024, [[]])


def test_errors_of_64_bits_may_be_more_than_32_bits_hold(library: Any) -> None:
    library.fields |= {(221, ALL_LINKS): (ULL, 5_000_000_000), (219, ALL_LINKS): (ULL, 2**32 - 1)}
    assert of(read(), "nvlink_errors") == {
        "nvlink_errors_total:symbol": 5_000_000_000,
        "nvlink_errors_total:effective": 2**32 - 1,
    }


@pytest.mark.parametrize(("kind", "number"), [(UINT, 2**32 - 1), (ULL, 2**64 - 1)])
def test_errors_that_the_driver_does_not_know_are_no_errors(library: Any, kind: int, number: int) -> None:
    library.fields |= {(91, 0): (UINT, 2), (161, 0): (kind, 3), (161, 1): (kind, number), (38, 0): (kind, number)}
    reading = Driver(pynvml).read()
    assert not of(reading.gpus[0], "nvlink_errors")
    assert reading.rejected == {"trackside_gpu_nvlink_errors_total": 2}


def test_errors_of_hopper_are_summed_over_links_where_there_are_no_totals(library: Any) -> None:
    library.fields |= {(91, 0): (UINT, 2), (161, 0): (ULL, 3), (161, 1): (ULL, 4), (163, 1): (ULL, 1)}
    assert of(read(), "nvlink_errors") == {"nvlink_errors_total:replay": 7, "nvlink_errors_total:crc": 1}


def test_totals_of_errors_are_not_added_to_those_of_links(library: Any) -> None:
    library.fields |= {(91, 0): (UINT, 1), (52, 0): (ULL, 5), (161, 0): (ULL, 5), (163, 0): (ULL, 1)}
    assert of(read(), "nvlink_errors") == {"nvlink_errors_total:replay": 5, "nvlink_errors_total:crc": 1}


@pytest.mark.parametrize(("sent", "received", "unit"), [(138, 139, 1024), (202, 204, 1)])
def test_each_link_reports_its_bytes_on_request(library: Any, sent: int, received: int, unit: int) -> None:
    library.fields |= {(91, 0): (UINT, 2), (sent, 0): (ULL, 10), (sent, 1): (ULL, 20), (received, 1): (ULL, 30)}
    library.values |= {("nvmlDeviceGetNvLinkState", 0): 1, ("nvmlDeviceGetNvLinkState", 1): 0}
    gpu = read("links")
    assert of(gpu, "nvlink_link_") == {
        "nvlink_link_transmit_bytes_total:0": 10 * unit,
        "nvlink_link_transmit_bytes_total:1": 20 * unit,
        "nvlink_link_receive_bytes_total:1": 30 * unit,
    }
    assert of(gpu, "nvlink_up") == {"nvlink_up:0": 1, "nvlink_up:1": 0}
    assert not of(read(), "nvlink_link_")


def test_links_to_a_grace_cpu_report_their_state_and_errors(library: Any) -> None:
    library.fields |= {(170, 0): (UINT, 2), (171, 0): (UINT, 1), (171, 1): (UINT, 0)}
    library.fields |= {(232, 0): (ULL, 2), (232, 1): (ULL, 3)}
    assert of(read(), "c2c_") == {"c2c_link_up:0": 1, "c2c_link_up:1": 0, "c2c_errors_total:replay": 5}


def mask(degraded: int = 2, recovery: int = 2, unhealthy: int = 2, timeout: int = 2, configuration: int = 1) -> int:
    """Return a health mask: 1 is present, 2 absent, 0 unknown to the GPU; a configuration of 1 is correct."""
    return degraded | recovery << 2 | unhealthy << 4 | timeout << 6 | configuration << 8


def test_a_healthy_fabric_has_none_of_the_problems(library: Any) -> None:
    library.values["nvmlDeviceGetGpuFabricInfoV"] = {"state": COMPLETED, "healthMask": mask(), "healthSummary": 1}
    assert of(read(), "fabric_") == {
        "fabric_state": 3,
        "fabric_healthy": 1,
        "fabric_problem:registration_failed": 0,
        "fabric_problem:degraded_bandwidth": 0,
        "fabric_problem:route_recovery": 0,
        "fabric_problem:route_unhealthy": 0,
        "fabric_problem:access_timeout_recovery": 0,
        "fabric_problem:incorrect_configuration": 0,
    }


@pytest.mark.parametrize("summary", [2, 3])
def test_an_unhealthy_fabric_names_its_problem(library: Any, summary: int) -> None:
    library.values["nvmlDeviceGetGpuFabricInfoV"] = {
        "state": COMPLETED,
        "healthMask": mask(degraded=1, recovery=0, configuration=5),
        "healthSummary": summary,
    }
    reported = of(read(), "fabric_")
    assert reported["fabric_healthy"] == 0
    assert {condition for condition, value in reported.items() if condition.startswith("fabric_problem") and value} == {
        "fabric_problem:degraded_bandwidth",
        "fabric_problem:incorrect_configuration",
    }
    assert "fabric_problem:route_recovery" not in reported


def test_an_older_driver_reports_health_by_its_mask(library: Any) -> None:
    def info(fake: Any, name: str, handle: Any, out: Any) -> int:
        if target(out).version != pynvml.nvmlGpuFabricInfo_v2:
            return MISMATCH
        target(out).state, target(out).healthMask = COMPLETED, mask(unhealthy=1)
        return 0

    library.functions["nvmlDeviceGetGpuFabricInfoV"] = info
    reported = of(read(), "fabric_")
    assert (reported["fabric_healthy"], reported["fabric_problem:route_unhealthy"]) == (0, 1)


def test_a_version_of_the_question_that_the_driver_does_not_know_is_put_once(library: Any) -> None:
    def info(fake: Any, name: str, handle: Any, out: Any) -> int:
        return 0 if target(out).version == pynvml.nvmlGpuFabricInfo_v2 else MISMATCH

    library.functions["nvmlDeviceGetGpuFabricInfoV"] = info
    seconds = itertools.count(step=SLOW_SECONDS)
    driver = Driver(pynvml, clock=lambda: next(seconds))
    driver.read()
    assert driver.read().calls["nvmlDeviceGetGpuFabricInfoV"] == {"argument_version_mismatch": 1, "success": 2}


def test_a_gpu_that_did_not_join_the_fabric_reports_it(library: Any) -> None:
    library.values["nvmlDeviceGetGpuFabricInfoV"] = {"state": COMPLETED, "status": NOT_SUPPORTED}
    reported = of(read(), "fabric_")
    assert reported["fabric_problem:registration_failed"] == 1


def test_a_gpu_without_a_fabric_is_neither_healthy_nor_ill(library: Any) -> None:
    library.values["nvmlDeviceGetGpuFabricInfoV"] = {"state": 0}
    assert of(read(), "fabric_") == {"fabric_state": 0}


def test_an_unknown_fabric_is_not_called_healthy(library: Any) -> None:
    library.values["nvmlDeviceGetGpuFabricInfoV"] = {"state": COMPLETED}
    assert "fabric_healthy" not in of(read(), "fabric_")
