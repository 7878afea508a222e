"""InfiniBand and RoCE ports, read from trees of files."""

from __future__ import annotations

import errno
import os
import shutil
from typing import TYPE_CHECKING

import pytest
from scripted_workers import Clock

from trackside_daemon.collectors.base import NothingToCollect
from trackside_daemon.collectors.host import infiniband
from trackside_daemon.collectors.host.infiniband import INTERVAL, RETRY_SECONDS, InfinibandCollector

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PREFIX = "trackside_host_infiniband_"
DOWNED = "link_downed_total"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def collector(tmp_path: Path, clock: Clock) -> InfinibandCollector:
    return InfinibandCollector(tmp_path, clock=clock)


@pytest.fixture
def before_reading(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], object]], None]:
    """A function that has another called with the path of each file before the collector reads it."""
    text = infiniband._text

    def replace(call: Callable[[str], object]) -> None:
        def read(path: str) -> bytes:
            call(path)
            return text(path)

        monkeypatch.setattr(infiniband, "_text", read)

    return replace


def port(sys: Path, device: str = "mlx5_0", number: int = 1, **counters: object) -> Path:
    directory = sys / "class" / "infiniband" / device / "ports" / str(number)
    (directory / "counters").mkdir(parents=True, exist_ok=True)
    for name, value in counters.items():
        (directory / "counters" / name).write_text(f"{value}\n")
    return directory


def hw_counters(directory: Path, **counters: object) -> None:
    (directory / "hw_counters").mkdir()
    for name, value in counters.items():
        (directory / "hw_counters" / name).write_text(f"{value}\n")


def reported(collector: InfinibandCollector, *labels: str) -> dict[str, object]:
    """Return the values of a port, by the name of the metric."""
    wanted = labels or ("mlx5_0", "1")
    return {
        sample.metric.name.removeprefix(PREFIX): sample.value
        for sample in collector.collect()
        if sample.labels[:2] == wanted
    }


def test_a_device_without_those_counters_may_have_them_in_bytes(tmp_path: Path, collector: InfinibandCollector) -> None:
    hw_counters(port(tmp_path, port_rcv_data=10), rx_bytes=7, tx_bytes=8, rx_pkts=1, tx_pkts=2)
    assert reported(collector) == {
        "port_data_received_bytes_total": 40,
        "port_data_transmitted_bytes_total": 8,
        "port_packets_received_total": 1,
        "port_packets_transmitted_total": 2,
    }


@pytest.mark.parametrize("rate", ["", "unknown", "0 Gb/sec", "-1 Gb/sec", "nan Gb/sec", "inf Gb/sec"])
def test_an_unknown_rate_is_absent(rate: str, tmp_path: Path, collector: InfinibandCollector) -> None:
    (port(tmp_path, link_downed=1) / "rate").write_text(f"{rate}\n")
    assert reported(collector) == {DOWNED: 1}


@pytest.mark.parametrize("text", ["N/A (no PMA)", "N/A (not available)", "", "-1", "18446744073709551615"])
def test_a_counter_that_is_no_number_is_absent(text: str, tmp_path: Path, collector: InfinibandCollector) -> None:
    port(tmp_path, link_downed=1, symbol_error=text)
    assert reported(collector) == {DOWNED: 1}


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP, errno.ENOENT, errno.EACCES, errno.EIO, errno.ENODEV])
def test_a_file_that_refuses_costs_only_itself(
    code: int, tmp_path: Path, collector: InfinibandCollector, before_reading: Callable[..., None]
) -> None:
    port(tmp_path, link_downed=1, symbol_error=2)

    def refuse(path: str) -> None:
        if path.endswith("symbol_error"):
            raise OSError(code, os.strerror(code), path)

    before_reading(refuse)
    assert reported(collector) == {DOWNED: 1}


def test_a_file_that_refused_is_left_alone_for_a_minute(
    tmp_path: Path, clock: Clock, collector: InfinibandCollector, before_reading: Callable[..., None]
) -> None:
    asked: list[str] = []
    before_reading(lambda path: asked.append(path.rpartition("/")[2]))
    directory = port(tmp_path, link_downed="x")
    (directory / "state").write_text("x\n")
    begun = clock.now
    collector.collect()
    assert {"link_downed", "state"} <= set(asked)
    asked.clear()
    (directory / "state").write_text("4: ACTIVE\n")
    port(tmp_path, link_downed=3)
    while clock.now < begun + RETRY_SECONDS - INTERVAL:
        clock.now += INTERVAL
        collector.collect()
    assert asked == []
    clock.now += INTERVAL
    assert reported(collector) == {DOWNED: 3, "port_state": 4}


def test_files_are_listed_and_states_read_only_now_and_then(
    tmp_path: Path, clock: Clock, collector: InfinibandCollector
) -> None:
    directory = port(tmp_path, link_downed=1)
    (directory / "state").write_text("4: ACTIVE\n")
    collector.collect()
    port(tmp_path, link_downed=2, symbol_error=1)
    (directory / "state").write_text("1: DOWN\n")
    clock.now += INTERVAL - 1
    assert reported(collector) == {DOWNED: 2, "port_state": 4}
    clock.now += 1
    assert reported(collector) == {DOWNED: 2, "symbol_error_total": 1, "port_state": 1}


def test_devices_and_ports_are_in_the_order_of_their_names_and_numbers(
    tmp_path: Path, collector: InfinibandCollector
) -> None:
    for device, number in [("mlx5_1", 1), ("mlx5_0", 10), ("mlx5_0", 2)]:
        port(tmp_path, device, number, link_downed=1)
    assert [sample.labels for sample in collector.collect()] == [("mlx5_0", "2"), ("mlx5_0", "10"), ("mlx5_1", "1")]


def test_a_device_may_be_a_link_as_in_sysfs(tmp_path: Path, collector: InfinibandCollector) -> None:
    (tmp_path / "class" / "infiniband").mkdir(parents=True)
    port(tmp_path / "devices", link_downed=1)
    (tmp_path / "class" / "infiniband" / "mlx5_0").symlink_to("../../devices/class/infiniband/mlx5_0")
    assert reported(collector) == {DOWNED: 1}


def test_a_device_that_comes_is_there_at_once(tmp_path: Path, collector: InfinibandCollector) -> None:
    port(tmp_path, link_downed=1)
    collector.collect()
    port(tmp_path, "mlx5_1", link_downed=2)
    assert reported(collector, "mlx5_1", "1") == {DOWNED: 2}


def test_a_device_that_goes_is_gone_at_once_and_may_come_back(tmp_path: Path, collector: InfinibandCollector) -> None:
    port(tmp_path, link_downed=1)
    gone = port(tmp_path, "mlx5_1", link_downed="x")
    (gone / "state").write_text("4: ACTIVE\n")
    assert reported(collector, "mlx5_1", "1") == {"port_state": 4}
    shutil.rmtree(tmp_path / "class" / "infiniband" / "mlx5_1")
    assert reported(collector, "mlx5_1", "1") == {}
    port(tmp_path, "mlx5_1", link_downed=0)
    assert reported(collector, "mlx5_1", "1") == {DOWNED: 0}


def test_a_device_that_goes_while_it_is_read_is_no_failure(
    tmp_path: Path, collector: InfinibandCollector, before_reading: Callable[..., None]
) -> None:
    port(tmp_path, port_xmit_wait=1, link_downed=1)
    port(tmp_path, "mlx5_1", link_downed=1)
    collector.collect()
    before_reading(lambda _: shutil.rmtree(tmp_path / "class" / "infiniband" / "mlx5_0", ignore_errors=True))
    assert {sample.labels for sample in collector.collect()} == {("mlx5_1", "1")}


def test_a_device_without_ports_reports_nothing(tmp_path: Path, collector: InfinibandCollector) -> None:
    (tmp_path / "class" / "infiniband" / "mlx5_0").mkdir(parents=True)
    assert collector.collect() == []


@pytest.mark.parametrize("there", [True, False])
def test_a_host_without_devices_has_nothing_to_collect(
    there: bool, tmp_path: Path, collector: InfinibandCollector
) -> None:
    if there:
        (tmp_path / "class" / "infiniband").mkdir(parents=True)
    with pytest.raises(NothingToCollect, match=r"class/infiniband has no device: .* --path\.sysfs"):
        collector.collect()
