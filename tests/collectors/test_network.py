"""Network devices, read from trees of files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from scripted_workers import Clock

from trackside_daemon.collectors.base import NothingToCollect
from trackside_daemon.collectors.host import network
from trackside_daemon.collectors.host.network import INTERVAL, NetworkCollector
from trackside_daemon.collectors.kernel_files import read
from trackside_daemon.collectors.settings import NetworkSection

if TYPE_CHECKING:
    from trackside_daemon.model.metric import Sample

EXCLUDE = NetworkSection().exclude
HEAD = "Inter-|   Receive  |  Transmit\n face |bytes packets errs drop fifo frame compressed multicast|bytes\n"
COUNTS = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def host(tmp_path: Path, clock: Clock) -> NetworkCollector:
    """A host with lo and eth0."""
    devices(tmp_path, "lo", "eth0")
    link(tmp_path, "lo", operstate="unknown", carrier_changes="0")
    link(tmp_path, "eth0", operstate="up", carrier_changes="2", speed="25000")
    return collector(tmp_path, clock)


def collector(root: Path, clock: Clock, exclude: str = EXCLUDE) -> NetworkCollector:
    return NetworkCollector(root / "proc", root / "sys", exclude, clock=clock)


def devices(root: Path, *names: str, of: str = "") -> None:
    dev = root / "proc" / of / "net" / "dev"
    dev.parent.mkdir(parents=True, exist_ok=True)
    dev.write_text(HEAD + "".join(f"{name:>6}: {COUNTS}\n" for name in names))


def link(root: Path, device: str, **files: str) -> None:
    directory = root / "sys" / "class" / "net" / device
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name).write_text(f"{text}\n")


def by_device(samples: list[Sample]) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    for metric, labels, value in samples:
        found.setdefault(labels[0], {})[metric.name.removeprefix("trackside_host_network_")] = value
    return found


def test_a_link_that_is_not_up_is_0(host: NetworkCollector) -> None:
    assert by_device(host.collect())["lo"]["up"] == 0


@pytest.mark.parametrize("speed", ["-1", "0", "65535", "4294967295", "", "unknown"])
def test_an_unknown_speed_is_absent(speed: str, host: NetworkCollector, tmp_path: Path) -> None:
    link(tmp_path, "eth0", speed=speed)
    reported = by_device(host.collect())["eth0"]
    assert "speed_bytes_per_second" not in reported
    assert reported["up"] == 1


def test_a_file_that_refuses_costs_only_itself(host: NetworkCollector, tmp_path: Path) -> None:
    refuses = tmp_path / "sys" / "class" / "net" / "eth0" / "operstate"
    refuses.unlink()
    refuses.mkdir()
    reported = by_device(host.collect())["eth0"]
    assert "up" not in reported
    assert reported["carrier_changes_total"] == 2


def test_links_are_read_only_now_and_then(host: NetworkCollector, clock: Clock, tmp_path: Path) -> None:
    host.collect()
    link(tmp_path, "eth0", operstate="down")
    clock.now += INTERVAL - 1
    assert by_device(host.collect())["eth0"]["up"] == 1
    clock.now += 1
    assert by_device(host.collect())["eth0"]["up"] == 0


def test_a_device_that_goes_removes_its_link(host: NetworkCollector, tmp_path: Path) -> None:
    host.collect()
    devices(tmp_path, "lo")
    assert set(by_device(host.collect())) == {"lo"}


def test_a_device_that_goes_while_it_is_read_is_no_failure(
    host: NetworkCollector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(path: Path | str) -> bytes:
        if "eth0" in str(path):
            raise FileNotFoundError(path)
        return read(path)

    monkeypatch.setattr(network, "read", gone)
    reported = by_device(host.collect())
    assert reported["eth0"]["receive_bytes_total"] == 1
    assert "up" not in reported["eth0"]
    assert "up" in reported["lo"]


def test_devices_that_come_between_two_files_are_read_in_the_next_tick(
    host: NetworkCollector, clock: Clock, tmp_path: Path
) -> None:
    host.collect()
    link(tmp_path, "eth1", operstate="up")
    link(tmp_path, "eth0", operstate="down")
    clock.now += INTERVAL
    assert by_device(host.collect())["eth0"]["up"] == 1
    devices(tmp_path, "lo", "eth0", "eth1")
    reported = by_device(host.collect())
    assert (reported["eth0"]["up"], reported["eth1"]["up"]) == (0, 1)


def test_the_sysfs_of_another_network_reveals_nothing_of_this_one(
    host: NetworkCollector, clock: Clock, tmp_path: Path
) -> None:
    host.collect()
    devices(tmp_path, "lo", "eth0", "docker0")
    clock.now += 2 * INTERVAL
    assert "up" not in by_device(host.collect())["eth0"]


@pytest.mark.parametrize(("counts", "is_ours"), [(("1", "9"), True), (("1", "8"), False), (("2", "9"), False)])
def test_the_sysfs_of_another_network_with_the_same_names_reveals_nothing_of_this_one(
    host: NetworkCollector, tmp_path: Path, counts: tuple[str, str], *, is_ours: bool
) -> None:
    link(tmp_path, "eth0/statistics", rx_bytes=counts[0], tx_bytes=counts[1])
    assert ("up" in by_device(host.collect())["eth0"]) == is_ours


def test_counts_that_grow_between_the_files_are_those_of_one_network(
    host: NetworkCollector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Procfs, sysfs and procfs again are read one after another."""
    link(tmp_path, "eth0/statistics", rx_bytes="5", tx_bytes="9")

    def grows(path: Path | str) -> bytes:
        if str(path).endswith("rx_bytes"):
            dev = tmp_path / "proc" / "net" / "dev"
            dev.write_text(dev.read_text().replace(": 1 ", ": 7 "))
        return read(path)

    monkeypatch.setattr(network, "read", grows)
    assert "up" in by_device(host.collect())["eth0"]


def test_a_host_without_sysfs_has_its_counts(tmp_path: Path, clock: Clock) -> None:
    devices(tmp_path, "lo")
    assert len(by_device(collector(tmp_path, clock).collect())["lo"]) == 8


def test_the_file_of_bonds_is_no_device(host: NetworkCollector, tmp_path: Path) -> None:
    (tmp_path / "sys" / "class" / "net" / "bonding_masters").write_text("\n")
    assert "up" in by_device(host.collect())["eth0"]


@pytest.mark.parametrize(
    "device",
    [
        *(
            "veth12ab",
            "docker0",
            "cali0",
            "br-7f",
            "virbr0",
            "cilium_host",
            "cni0",
            "tap1",
            "eni0123456789a",
            "azv0a1b2c3d4e5",
        ),
        *(
            "gke0123456789a",
            "vxlan.calico",
            "kube-ipvs0",
            "nodelocaldns",
            "cbr0",
            "tunl0",
            "genev_sys_6081",
            "ovs-system",
        ),
        *("lxdbr0", "incusbr0", "nerdctl0", "vxlan_sys_4789"),
    ],
)
def test_what_containers_and_machines_plug_in_is_left_out(device: str, tmp_path: Path, clock: Clock) -> None:
    devices(tmp_path, "lo", device)
    assert set(by_device(collector(tmp_path, clock).collect())) == {"lo"}


@pytest.mark.parametrize(
    "device", ["eth0", "ens5", "enp3s0f1np1", "eno1", "eni", "bond0", "ib0", "br0", "wlan0", "vlan7"]
)
def test_what_the_machine_has_itself_is_shown(device: str, tmp_path: Path, clock: Clock) -> None:
    devices(tmp_path, device)
    assert set(by_device(collector(tmp_path, clock).collect())) == {device}


def test_when_all_are_left_out_there_is_nothing_to_collect(tmp_path: Path, clock: Clock) -> None:
    devices(tmp_path, "lo", "eth0")
    with pytest.raises(NothingToCollect, match=r"net/dev has only devices that collector\.network\.exclude leaves"):
        collector(tmp_path, clock, ".*").collect()


def test_the_setting_matches_whole_names(tmp_path: Path, clock: Clock) -> None:
    devices(tmp_path, "eth", "eth0")
    assert set(by_device(collector(tmp_path, clock, "eth").collect())) == {"eth0"}


def test_the_network_is_that_of_process_1(tmp_path: Path, clock: Clock) -> None:
    devices(tmp_path, "eth0")
    devices(tmp_path, "bond0", of="1")
    assert set(by_device(collector(tmp_path, clock).collect())) == {"bond0"}


def test_where_process_1_cannot_be_read_the_network_is_the_daemons_own(tmp_path: Path, clock: Clock) -> None:
    devices(tmp_path, "eth0")
    (tmp_path / "proc" / "1" / "net" / "dev").mkdir(parents=True)
    assert set(by_device(collector(tmp_path, clock).collect())) == {"eth0"}


@pytest.mark.parametrize("line", ["eth0: 1 2 3", "eth0: 1 2 3 4 5 6 7 8 nine 10 11 12", "eth0:"])
def test_a_line_that_is_not_one_of_numbers_costs_only_itself(line: str, tmp_path: Path, clock: Clock) -> None:
    devices(tmp_path, "lo")
    with (tmp_path / "proc" / "net" / "dev").open("a") as dev:
        dev.write(f"{line}\n")
    assert set(by_device(collector(tmp_path, clock).collect())) == {"lo"}


def test_a_line_without_a_space_after_its_colon_is_read(tmp_path: Path, clock: Clock) -> None:
    devices(tmp_path)
    with (tmp_path / "proc" / "net" / "dev").open("a") as dev:
        dev.write(f"  eth0:{COUNTS}\n")
    assert by_device(collector(tmp_path, clock).collect())["eth0"]["receive_bytes_total"] == 1


def test_a_file_without_devices_is_named(tmp_path: Path, clock: Clock) -> None:
    devices(tmp_path)
    with pytest.raises(ValueError, match=r"net/dev has no line of a device"):
        collector(tmp_path, clock).collect()


def test_a_file_that_is_missing_is_named(tmp_path: Path, clock: Clock) -> None:
    with pytest.raises(FileNotFoundError, match="net/dev"):
        collector(tmp_path, clock).collect()


def test_the_host_that_runs_the_test_can_be_read() -> None:
    reported = by_device(NetworkCollector(Path("/proc"), Path("/sys"), "").collect())
    assert {"receive_bytes_total", "up"} <= reported["lo"].keys()
