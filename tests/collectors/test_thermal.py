"""Temperatures and energy, read from small trees."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from trackside_daemon.collectors.base import NothingToCollect
from trackside_daemon.collectors.host import thermal
from trackside_daemon.collectors.host.thermal import SEARCH_SECONDS, ThermalCollector
from trackside_daemon.collectors.kernel_files import read
from trackside_daemon.model.families import host

if TYPE_CHECKING:
    from pathlib import Path

MOST = 262_143_328_850


def fill(directory: Path, **files: object) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name).write_text(f"{text}\n")
    return directory


def chip(sys: Path, number: int, name: str, **files: object) -> Path:
    return fill(sys / "class" / "hwmon" / f"hwmon{number}", name=name, **files)


def package(sys: Path, number: int, microjoules: int, name: str | None = None) -> Path:
    zone = sys / "class" / "powercap" / f"intel-rapl:{number}"
    return fill(zone, name=name or f"package-{number}", energy_uj=microjoules, max_energy_range_uj=MOST)


def temperatures(collector: ThermalCollector) -> dict[tuple[str, ...], object]:
    return {sample.labels: sample.value for sample in collector.collect() if sample.metric is host.CPU_TEMPERATURE}


def energies(collector: ThermalCollector) -> dict[tuple[str, ...], object]:
    return {sample.labels: sample.value for sample in collector.collect() if sample.metric is host.CPU_ENERGY}


def test_a_sensor_is_named_by_its_label_and_without_one_by_its_file(tmp_path: Path) -> None:
    chip(tmp_path, 0, "k10temp", temp1_input=70125, temp1_label="Tctl", temp3_input=61000)
    assert temperatures(ThermalCollector(tmp_path)) == {("k10temp", "Tctl"): 70.125, ("k10temp", "temp3"): 61}


def test_sensors_of_one_label_go_by_their_files(tmp_path: Path) -> None:
    chip(tmp_path, 0, "coretemp", temp1_input=1000, temp1_label="Core 0", temp2_input=2000, temp2_label="Core 0")
    assert temperatures(ThermalCollector(tmp_path)) == {("coretemp", "temp1"): 1, ("coretemp", "temp2"): 2}


def test_the_chips_of_two_sockets_go_by_their_devices_as_node_exporter_has_them(tmp_path: Path) -> None:
    for socket in (0, 1):
        device = fill(tmp_path / "devices" / "platform" / f"coretemp.{socket}")
        chip(tmp_path, socket, "coretemp", temp1_input=50000 + socket, temp1_label="Package id").joinpath(
            "device"
        ).symlink_to(device)
    assert temperatures(ThermalCollector(tmp_path)) == {
        ("platform_coretemp_0", "Package id"): 50,
        ("platform_coretemp_1", "Package id"): 50.001,
    }


@pytest.mark.parametrize("name", ["coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu0_thermal"])
def test_a_chip_of_a_cpu_is_identified_by_its_name(tmp_path: Path, name: str) -> None:
    chip(tmp_path, 0, name, temp1_input=1000)
    chip(tmp_path, 1, "nvme", temp1_input=1000)
    assert set(temperatures(ThermalCollector(tmp_path))) == {(name, "temp1")}


def test_a_sensor_that_does_not_answer_is_left_out_until_it_does(tmp_path: Path) -> None:
    directory = chip(tmp_path, 0, "coretemp", temp1_input=1000, temp2_input=2000)
    collector = ThermalCollector(tmp_path, clock=lambda: 0.0)
    assert len(temperatures(collector)) == 2
    (directory / "temp2_input").unlink()
    assert temperatures(collector) == {("coretemp", "temp1"): 1}
    fill(directory, temp2_input=3000)
    assert temperatures(collector) == {("coretemp", "temp1"): 1, ("coretemp", "temp2"): 3}


def test_a_reading_that_is_no_number_costs_itself_alone_and_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chip(tmp_path, 0, "coretemp", temp1_input="warm", temp2_input=2000)
    collector = ThermalCollector(tmp_path)
    assert temperatures(collector) == temperatures(collector) == {("coretemp", "temp2"): 2}
    (record,) = caplog.records
    assert "temp1_input is left out: " in record.getMessage()
    assert "warm" in record.getMessage()


def test_chips_that_come_later_are_found_after_a_while(tmp_path: Path) -> None:
    now = 0.0
    collector = ThermalCollector(tmp_path, clock=lambda: now)
    with pytest.raises(NothingToCollect, match=r"class/hwmon or .*class/powercap; .*modprobe coretemp"):
        collector.collect()
    chip(tmp_path, 0, "coretemp", temp1_input=1000)
    now = SEARCH_SECONDS
    assert temperatures(collector) == {("coretemp", "temp1"): 1}


def test_the_energy_of_packages_alone_is_reported(tmp_path: Path) -> None:
    package(tmp_path, 0, 1_500_000)
    package(tmp_path, 1, 2_500_000, "package-1-die-0")
    package(tmp_path, 2, 9_000_000, "psys")
    fill(tmp_path / "class" / "powercap" / "intel-rapl:0:0", name="dram", energy_uj=5, max_energy_range_uj=MOST)
    assert energies(ThermalCollector(tmp_path)) == {("0",): 1.5, ("1-die-0",): 2.5}


def test_an_energy_that_begins_again_is_carried_over(tmp_path: Path) -> None:
    now = 0.0
    collector = ThermalCollector(tmp_path, clock=lambda: now)
    reported = []
    for microjoules in (MOST - 1_000_000, 2_000_000, 3_000_000, MOST - 500_000, 0):
        now += SEARCH_SECONDS
        package(tmp_path, 0, microjoules)
        reported.append(energies(collector)["0",])
    most = MOST / 1e6
    assert reported == pytest.approx([most - 1, most + 2, most + 3, 2 * most - 0.5, 2 * most])


def test_an_energy_that_was_reset_grows_on_from_what_it_was(tmp_path: Path) -> None:
    package(tmp_path, 0, 5_000_000)
    collector = ThermalCollector(tmp_path)
    assert energies(collector) == {("0",): 5}
    package(tmp_path, 0, 1_000_000)
    assert energies(collector) == {("0",): 6}


@pytest.fixture
def as_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine where only root could read ``energy_uj``, so that reading it fails."""

    def denied(path: Path) -> bytes:
        if path.name == "energy_uj":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return read(path)

    monkeypatch.setattr(thermal, "read", denied)


@pytest.mark.usefixtures("as_user")
def test_energy_that_may_not_be_read_is_left_out_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chip(tmp_path, 0, "coretemp", temp1_input=1000)
    for number in (0, 1):
        package(tmp_path, number, 5)
    collector = ThermalCollector(tmp_path)
    for _ in range(2):
        assert [sample.metric for sample in collector.collect()] == [host.CPU_TEMPERATURE]
    (record,) = caplog.records
    assert "energy_uj is left out: only root may read it; run the daemon as root, or with" in record.getMessage()


@pytest.mark.usefixtures("as_user")
def test_a_host_with_nothing_but_what_may_not_be_read_has_nothing(tmp_path: Path) -> None:
    package(tmp_path, 0, 5)
    with pytest.raises(NothingToCollect, match="a readable energy counter"):
        ThermalCollector(tmp_path).collect()
