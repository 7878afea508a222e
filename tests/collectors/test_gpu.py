"""GPU series, from readings as plain objects."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, cast

import pytest

from trackside_daemon.collectors.base import NothingToCollect, StillBusy
from trackside_daemon.collectors.gpu.gpu import PAGING, GpuCollector, GpuEventLog, reading_timeout
from trackside_daemon.nvml.handle.handle import Nvml, NvmlAbsent, NvmlLate, NvmlPaused, NvmlUnavailable
from trackside_daemon.nvml.readers.unsupported import WHY
from trackside_daemon.nvml.reading import GpuReading, Reading
from trackside_daemon.nvml.simulation.simulate import simulate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.nvml.reading import Value

INFO = {
    "name": "NVIDIA H100",
    "pci_bus_id": "00000000:01:00.0",
    "serial": "165",
    "vbios_version": "96.00",
    "architecture": "hopper",
    "compute_capability": "9.0",
    "minor": "3",
    "numa_node": "1",
    "source": "nvml",
}
DRIVER = {"driver_version": "580.95", "nvml_version": "13.580.95", "cuda_version": "13.0"}
DOWN: list[Value] = [("up", (), 0.0)]
UP: list[Value] = [("up", (), 1.0)]


class Answers:
    """A handle that returns one answer after the other, and repeats the last."""

    def __init__(self, answers: Sequence[Reading | Exception]) -> None:
        self.answers = list(answers)
        self.skipped = 0
        self.last = Reading()
        self.patience = 0.0

    def read(self, patience: float) -> Reading:
        self.patience = patience
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        self.last = answer
        return answer


class Busy(Answers):
    """A handle whose worker is still busy with an earlier request."""

    def read(self, patience: float) -> Reading:
        self.skipped += 1
        return super().read(patience)


def collector(*answers: Reading | Exception) -> GpuCollector:
    return GpuCollector(cast("Nvml", Answers(answers)), timeout=1.0, event_log=GpuEventLog())


def series(one: GpuCollector) -> dict[tuple[str, ...], object]:
    return {(sample.metric.name, *sample.labels): sample.value for sample in one.collect()}


def without_xids(found: dict[tuple[str, ...], object]) -> dict[tuple[str, ...], object]:
    return {name: value for name, value in found.items() if "xid" not in name[0]}


def test_how_long_it_waits_may_change() -> None:
    handle = Answers([Reading()])
    one = GpuCollector(cast("Nvml", handle), timeout=0.25)
    one.collect()
    assert handle.patience == 0.25
    one.timeout = 0.025
    one.collect()
    assert handle.patience == 0.025


@pytest.mark.parametrize(("interval", "seconds"), [(0.1, 0.025), (1, 0.25), (6, 1.5), (60, 2)])
def test_a_tick_waits_for_a_quarter_of_its_interval_and_never_long(interval: float, seconds: float) -> None:
    assert reading_timeout(interval) == seconds


def test_a_value_carries_the_gpu_its_uuid_and_its_own_labels() -> None:
    gpu = GpuReading(3, "GPU-3", INFO, [("temperature_celsius", ("gpu",), 61.0), ("power_watts", (), 412.5)])
    assert without_xids(series(collector(Reading([gpu], DRIVER)))) == {
        ("trackside_nvidia_driver_info", "580.95", "13.580.95", "13.0"): 1,
        ("trackside_gpu_info", "3", "GPU-3", *INFO.values()): 1,
        ("trackside_gpu_temperature_celsius", "3", "GPU-3", "gpu"): 61.0,
        ("trackside_gpu_power_watts", "3", "GPU-3"): 412.5,
    }


def test_every_sample_has_a_value_for_each_label() -> None:
    for sample in collector(simulate(2, now=0.0)).collect():
        assert len(sample.labels) == len(sample.metric.labels), sample.metric.name


def test_a_family_of_a_newer_worker_is_passed_over() -> None:
    gpu = GpuReading(0, "GPU-0", INFO, [("of_tomorrow_ratio", (), 0.5), *UP])
    found = series(collector(Reading([gpu])))
    assert ("trackside_gpu_up", "0", "GPU-0") in found
    assert not any("tomorrow" in name[0] for name in found)


def test_a_gpu_that_is_lost_or_gone_is_not_up_and_still_reports_what_it_is() -> None:
    lost, gone = GpuReading(0, "GPU-0", INFO, DOWN), GpuReading(1, "GPU-1", INFO, DOWN)
    assert without_xids(series(collector(Reading([lost], gone=[gone])))) == {
        ("trackside_gpu_info", "0", "GPU-0", *INFO.values()): 1,
        ("trackside_gpu_up", "0", "GPU-0"): 0.0,
        ("trackside_gpu_info", "1", "GPU-1", *INFO.values()): 1,
        ("trackside_gpu_up", "1", "GPU-1"): 0.0,
    }


def test_the_xids_that_page_begin_at_zero_for_each_gpu() -> None:
    found = series(collector(Reading([GpuReading(0, "GPU-0", INFO, UP), GpuReading(1, "GPU-1", INFO, UP)])))
    counters = {name: value for name, value in found.items() if name[0] == "trackside_gpu_xid_errors_total"}
    assert counters == {
        ("trackside_gpu_xid_errors_total", str(index), f"GPU-{index}", str(xid)): 0
        for index in (0, 1)
        for xid in PAGING
    }
    assert not any(name[0] == "trackside_gpu_xid_last_timestamp_seconds" for name in found)


def test_an_xid_is_counted_and_dated_also_of_a_gpu_that_is_gone_or_unknown() -> None:
    xids = {"GPU-1": {79: (1, 1.7e9)}, "GPU-0": {13: (4, 1.6e9)}, "": {62: (2, 1.5e9)}}
    reading = Reading([GpuReading(0, "GPU-0", INFO, UP)], gone=[GpuReading(1, "GPU-1", INFO, DOWN)], xids=xids)
    found = series(collector(reading))
    answered = (("1", "GPU-1", "79", 1, 1.7e9), ("0", "GPU-0", "13", 4, 1.6e9), ("", "", "62", 2, 1.5e9))
    for index, uuid, xid, times, last in answered:
        assert found["trackside_gpu_xid_errors_total", index, uuid, xid] == times
        assert found["trackside_gpu_xid_last_timestamp_seconds", index, uuid, xid] == last
    assert found["trackside_gpu_xid_errors_total", "0", "GPU-0", "79"] == 0


def test_a_host_without_a_driver_has_nothing_to_collect_and_names_the_cure() -> None:
    absent = NvmlAbsent("libnvidia-ml.so.1 not found; install the NVIDIA driver")
    with pytest.raises(NothingToCollect) as caught:
        collector(absent).collect()
    assert str(caught.value) == (
        "NVML is not available: libnvidia-ml.so.1 not found; install the NVIDIA driver, "
        "or switch the collector off with --no-collector.gpu"
    )


def test_gpus_that_are_left_alone_are_nothing_to_collect_and_no_reason_to_switch_the_collector_off() -> None:
    with pytest.raises(NothingToCollect) as caught:
        collector(NvmlPaused("paused until 10:00:00; trackside resume-gpu goes on at once")).collect()
    assert str(caught.value) == "paused until 10:00:00; trackside resume-gpu goes on at once"


def test_a_worker_that_fails_is_a_failure_and_one_that_is_busy_skips_the_tick() -> None:
    failing = collector(NvmlUnavailable("it crashed"))
    with pytest.raises(NvmlUnavailable):
        failing.collect()
    with pytest.raises(StillBusy, match="no answer for 2 s"):
        GpuCollector(cast("Nvml", Busy([NvmlUnavailable("no answer for 2 s")])), timeout=1.0).collect()
    with pytest.raises(
        StillBusy, match=r"no answer for 0\.2 s"
    ):  # no failure: the first answers of a busy host are late
        collector(NvmlLate("no answer for 0.2 s")).collect()


def test_gpus_that_were_seen_are_held_while_nvml_sees_none_at_all() -> None:
    reading = Reading(
        [GpuReading(0, "GPU-0", INFO, [*UP, ("power_watts", (), 99.0)])], xids={"GPU-0": {79: (1, 1.7e9)}}
    )
    one = collector(reading, NvmlAbsent("NVML sees no GPU"), reading)
    one.collect()
    assert one.samples_without_reading() == []
    with pytest.raises(NothingToCollect):
        one.collect()
    held: dict[tuple[str, ...], object] = {
        (sample.metric.name, *sample.labels): sample.value for sample in one.samples_without_reading()
    }
    assert without_xids(held) == {
        ("trackside_gpu_info", "0", "GPU-0", *INFO.values()): 1,
        ("trackside_gpu_up", "0", "GPU-0"): 0.0,
    }
    assert held["trackside_gpu_xid_errors_total", "0", "GPU-0", "79"] == 1
    one.collect()
    assert one.samples_without_reading() == []


def test_gpus_that_were_left_alone_are_not_missed_afterwards() -> None:
    reading = Reading([GpuReading(0, "GPU-0", INFO, UP)])
    absent = NvmlAbsent("NVML sees no GPU")
    paused = collector(reading, NvmlPaused("paused"), absent)
    paused.collect()
    reported = collector(reading, absent)
    reported.collect()
    reported.forget()
    for one, times in ((paused, 2), (reported, 1)):
        for _ in range(times):
            with pytest.raises(NothingToCollect):
                one.collect()
        assert (one.samples_without_reading(), one.snapshot.most) == ([], 0)


def test_what_the_daemon_may_not_read_is_logged_once_with_the_cure(caplog: pytest.LogCaptureFixture) -> None:
    unsupported = {"accounting": WHY["no_permission"], "energy": WHY["not_supported"]}
    gpu = GpuReading(0, "GPU-0", INFO, UP, unsupported)
    more = GpuReading(0, "GPU-0", INFO, UP, {**unsupported, "xids": WHY["no_permission"]})
    one = collector(Reading([gpu]), Reading([gpu]), Reading([more]))
    with caplog.at_level(logging.INFO, "trackside"):
        for _ in range(3):
            one.collect()
    assert [text for text in caplog.messages if "refuses" in text] == [
        "GPU 0 (NVIDIA H100, GPU-0) refuses accounting: no permission; run the daemon as root or with CAP_SYS_ADMIN",
        "GPU 0 (NVIDIA H100, GPU-0) refuses xids: no permission; run the daemon as root or with CAP_SYS_ADMIN",
    ]


def test_the_xids_that_page_are_not_called_zero_where_none_can_be_received() -> None:
    reading = Reading(
        [GpuReading(0, "GPU-0", INFO, UP, {"xid": WHY["not_supported"]}), GpuReading(1, "GPU-1", INFO, UP)],
        xids={"GPU-0": {13: (1, 1.7e9)}},
    )
    found = series(collector(reading))
    counted = {name[2:] for name in found if name[0] == "trackside_gpu_xid_errors_total"}
    assert counted == {("GPU-0", "13"), *(("GPU-1", str(xid)) for xid in PAGING)}


def test_gpus_that_may_not_be_opened_are_no_gpus_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    why = {"nvmlDeviceGetHandleByIndex": "no permission to open it"}
    hidden = [GpuReading(index, "", {}, [], why) for index in (0, 2)]
    one = collector(Reading([GpuReading(1, "GPU-1", INFO, UP)], hidden=hidden))
    for _ in range(2):
        assert {name[1] for name in without_xids(series(one))} == {"1"}
    assert one.snapshot.visible == 1
    assert [record.getMessage() for record in caplog.records] == [
        f"GPU {index} (unknown, without a UUID) refuses nvmlDeviceGetHandleByIndex: no permission to open it"
        for index in (0, 2)
    ]
