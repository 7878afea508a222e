"""Families that node_exporter has too, compared with Debian's node_exporter: type, labels and values of each.

The tests compare on this machine, and on machines that are trees of files, which have hardware that this one lacks.
A new family of the host has to be compared here, or listed in `LACKING` with the reason.
"""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING, NamedTuple

import pytest
from documents import generator
from end_to_end.node_exporter import EVERYTHING, Family, NodeExporter, families
from processes import ROOT, eventually, lasting_daemon

from trackside_daemon.collectors.host.host import host_collectors
from trackside_daemon.collectors.settings import (
    CollectorsSection,
    CpuSection,
    FilesystemSection,
    PathSection,
    ThermalSection,
)
from trackside_daemon.model.families import daemon as daemon_families
from trackside_daemon.model.state import State
from trackside_daemon.sampling.sampler import Sampler
from trackside_daemon.web.exposition import render

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HOST = "trackside_host_"
MACHINES = sorted((ROOT / "tests" / "collectors" / "machines").iterdir())
MIB = 2**20

NAMED = {
    "cpu_core_seconds_total": ("cpu_seconds_total",),
    "memory_bytes": ("memory_MemTotal_bytes",),
    "memory_available_bytes": ("memory_MemAvailable_bytes",),
    "memory_free_bytes": ("memory_MemFree_bytes",),
    "memory_buffers_bytes": ("memory_Buffers_bytes",),
    "memory_cached_bytes": ("memory_Cached_bytes",),
    "memory_shmem_bytes": ("memory_Shmem_bytes",),
    "memory_dirty_bytes": ("memory_Dirty_bytes",),
    "memory_writeback_bytes": ("memory_Writeback_bytes",),
    "memory_anonymous_bytes": ("memory_AnonPages_bytes",),
    "swap_bytes": ("memory_SwapTotal_bytes",),
    "swap_used_bytes": ("memory_SwapTotal_bytes", "memory_SwapFree_bytes"),
    "oom_kills_total": ("vmstat_oom_kill",),
    "major_page_faults_total": ("vmstat_pgmajfault",),
    "page_faults_total": ("vmstat_pgfault",),
    "swap_in_pages_total": ("vmstat_pswpin",),
    "swap_out_pages_total": ("vmstat_pswpout",),
    "network_speed_bytes_per_second": ("network_speed_bytes",),
    "time_offset_seconds": ("timex_offset_seconds",),
    "time_synchronized": ("timex_sync_status",),
    "infiniband_port_state": ("infiniband_state_id",),
    "infiniband_port_physical_state": ("infiniband_physical_state_id",),
    "cpu_temperature_celsius": ("hwmon_temp_celsius",),
    "cpu_energy_joules_total": ("rapl_package_joules_total",),
}
"""What theirs is called, without its ``node_``, where it is not as ours is; the first less the others."""

LACKING = {
    "cpus": "it counts no CPUs",
    "hung_tasks_total": "newer than Debian's node_exporter",
    "pressure_irq_stalled_seconds_total": "newer than Debian's node_exporter",
    **dict.fromkeys(
        (
            *("infiniband_duplicate_requests_packets_total", "infiniband_implied_nak_seq_errors_total"),
            *("infiniband_local_ack_timeout_errors_total", "infiniband_np_cnp_packets_sent_total"),
            *("infiniband_np_ecn_marked_roce_packets_received_total", "infiniband_out_of_buffer_drops_total"),
            *("infiniband_out_of_sequence_packets_received_total", "infiniband_packet_sequence_errors_total"),
            *("infiniband_rnr_nak_retry_packets_received_total", "infiniband_roce_adp_retransmits_timeout_total"),
            *("infiniband_roce_adp_retransmits_total", "infiniband_rp_cnp_ignored_packets_received_total"),
            *("infiniband_rp_cnp_packets_handled_total", "infiniband_rx_icrc_encapsulated_errors_total"),
        ),
        "hw_counters came with node_exporter 1.11",
    ),
    "infiniband_port_info": "asked for and closed there (prometheus/node_exporter#3658)",
}
"""What Debian's node_exporter does not have, and why."""

LEFT_OUT = {
    "network_speed_bytes_per_second": "theirs is negative where the speed is not known",
}
"""What it may show while we do not, and why."""

UNTYPED = {name for name, (first, *_) in NAMED.items() if first.startswith("vmstat_")}
"""It passes on whatever /proc/vmstat has, and cannot know what counts."""

RENAMED = {"package": "index"}
"""Its names for our labels."""

SUMMED = {"cpu_seconds_total"}
"""Ours is the sum of theirs over the labels that ours lacks."""

SLACK = {
    **dict.fromkeys((name for name in NAMED if name.startswith("memory_") and name != "memory_bytes"), 32 * MIB),
    "procs_running": 3.0,
    "cpu_seconds_total": 0.2,  # each CPU is rounded to 10 ms; idle and iowait step back, and each holds its own highest
    "cpu_core_seconds_total": 0.2,
}
"""So far outside of our two readings may theirs be."""

ROUNDING = 1e-9
"""Of the value: a sum of floats depends on the order."""

FILES = ("--no-collector.filesystem", "--no-collector.netdev.netlink")
"""What it reads of this machine in any case, but for its clock."""

ROUNDS = 40
"""A machine that moves between the readings is read again, so often at most."""


class Readings(NamedTuple):
    """Ours, theirs, and ours again."""

    before: dict[str, Family]
    theirs: dict[str, Family]
    after: dict[str, Family]


@pytest.fixture(scope="module")
def names() -> set[str]:
    """The names of all families of the host, without ``trackside_host_``."""
    defined = [metric.name for members in generator().sections().values() for metric in members]
    return {name.removeprefix(HOST) for name in defined if name.startswith(HOST)}


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Readings]:
    """The readings of each machine that is a tree of files."""
    directory = tmp_path_factory.mktemp("machines")
    for tree in MACHINES:
        shutil.copytree(tree, directory / tree.name, symlinks=True)
        _complete(directory / tree.name / "sys")
    return {tree.name: _read_tree(directory / tree.name) for tree in MACHINES}


@pytest.fixture(scope="module")
def live() -> Iterator[Callable[[], Readings]]:
    """A function that reads this machine."""
    flags = ("--sample.interval=250ms", "--collector.thermal", "--collector.cpu.per-cpu")
    with lasting_daemon(*flags) as daemon, NodeExporter(*EVERYTHING) as exporter:

        def read() -> Readings:
            before, theirs, now = daemon.get("/metrics").text, exporter.page(), time.time()
            after = eventually(lambda: _sampled_since(now, daemon.get("/metrics").text))
            return Readings(families(before), _theirs(theirs), after)

        yield read


def test_each_family_of_this_machine_is_as_node_exporter_has_it(live: Callable[[], Readings], names: set[str]) -> None:
    left = {name: ["was not read"] for name in names - set(LACKING)}
    for _ in range(ROUNDS):
        readings = live()
        left = {name: found for name in left if (found := list(differences(name, readings, strict=True)))}
        if not left:
            break
    assert left == {}


@pytest.mark.parametrize("machine", [tree.name for tree in MACHINES])
def test_each_family_of_a_machine_of_files_is_as_node_exporter_has_it(
    trees: dict[str, Readings], machine: str, names: set[str]
) -> None:
    found = [
        found for name in sorted(names - set(LACKING)) for found in differences(name, trees[machine], strict=False)
    ]
    assert found == []


def test_each_family_is_compared_somewhere_or_listed_as_ours_alone(
    live: Callable[[], Readings], trees: dict[str, Readings], names: set[str]
) -> None:
    seen = [live(), *trees.values()]
    compared = {
        name
        for name in names
        for readings in seen
        if HOST + name in readings.after and all(f"node_{one}" in readings.theirs for one in NAMED.get(name, (name,)))
    }
    assert names - compared == set(LACKING) & names
    assert set(LACKING) | set(NAMED) | set(LEFT_OUT) <= names


def test_a_difference_is_found() -> None:
    ours = {"trackside_host_load1": Family("gauge", {frozenset(): 2.0})}
    theirs = {"node_load1": Family("counter", {frozenset(): 2.1})}
    assert list(differences("load1", Readings(ours, theirs, ours), strict=True)) == [
        "load1 is a gauge, theirs a counter",
        "load1 {} is 2.0 and then 2.0, theirs 2.1",
    ]
    assert list(differences("load1", Readings({}, theirs, {}), strict=True)) == ["load1 is not there, theirs is"]
    assert list(differences("load1", Readings(ours, {}, ours), strict=True)) == ["load1 is there, theirs is not"]


def differences(name: str, readings: Readings, *, strict: bool) -> Iterator[str]:
    """Yield the differences of one of our families; *strict* includes families that only one side has."""
    before, after = readings.before.get(HOST + name), readings.after.get(HOST + name)
    theirs = [readings.theirs.get(f"node_{one}") for one in NAMED.get(name, (name,))]
    if after is None or before is None or theirs[0] is None:
        if strict and after is None and theirs[0] is not None and name not in LEFT_OUT:
            yield f"{name} is not there, theirs is"
        if strict and after is not None and theirs[0] is None:
            yield f"{name} is there, theirs is not"
        return
    kind = "unknown" if name in UNTYPED else after.kind
    if theirs[0].kind != kind:
        yield f"{name} is a {after.kind}, theirs a {theirs[0].kind}"
    for labels, value in after.values.items():
        first = before.values.get(labels, value)
        found = [_of(one, dict(labels), name) for one in theirs if one is not None]
        candidates = [value - sum(rest[0] for rest in found[1:]) for value in found[0]]
        slack = SLACK.get(name, 0.0) + ROUNDING * abs(value)
        if not any(min(first, value) - slack <= one <= max(first, value) + slack for one in candidates):
            text = ", ".join(map(str, candidates)) or "not there"
            yield f"{name} {dict(labels)} is {first} and then {value}, theirs {text}"


def _of(theirs: Family, labels: dict[str, str], name: str) -> list[float]:
    """Return node_exporter's values of the series whose labels do not contradict these."""
    wanted = {RENAMED.get(label, label): text for label, text in labels.items()}
    if name not in SUMMED and (exact := frozenset(wanted.items())) in theirs.values:
        return [theirs.values[exact]]  # at once: a large machine has thousands
    found = [
        value
        for series in theirs.values
        if all(wanted.get(label, text) == text for label, text in series)
        for value in [theirs.values[series]]
    ]
    return [sum(found)] if name in SUMMED else found


def _theirs(page: str) -> dict[str, Family]:
    """Return node_exporter's page with temperatures by the sensor's label, which is a separate family there."""
    found = families(page)
    names = [dict(labels) for labels in found.get("node_hwmon_sensor_label", Family("gauge", {})).values]
    labelled = {(one["chip"], one["sensor"]): one["label"] for one in names}
    if (temperatures := found.get("node_hwmon_temp_celsius")) is not None:
        for labels, value in list(temperatures.values.items()):
            one = dict(labels)
            one["sensor"] = labelled.get((one["chip"], one["sensor"]), one["sensor"])
            temperatures.values[frozenset(one.items())] = value
    return found


def _sampled_since(moment: float, page: str) -> dict[str, Family]:
    """Return our page once every working collector has begun a reading after *moment*; else nothing."""
    found = families(page)
    took, success, last = (
        found[one.name].values
        for one in (
            daemon_families.COLLECTOR_DURATION,
            daemon_families.COLLECTOR_SUCCESS,
            daemon_families.COLLECTOR_LAST_SUCCESS,
        )
    )
    begun = [last[name] - took[name] for name, works in success.items() if works]
    return found if min(begun) > moment else {}


def _complete(sys: Path) -> None:
    """Add files that node_exporter requires and we do not read."""
    sys.mkdir(exist_ok=True)
    for device in sys.glob("class/infiniband/*"):
        for name in ("board_id", "fw_ver", "hca_type"):
            (device / name).write_text("1\n")


def _read_tree(tree: Path) -> Readings:
    on = CollectorsSection(
        cpu=CpuSection(per_cpu=True), filesystem=FilesystemSection(enabled=False), thermal=ThermalSection(enabled=True)
    )
    roots = PathSection(procfs=str(tree / "proc"), sysfs=str(tree / "sys"))
    sampler = Sampler(host_collectors(on, roots, ()), lambda _: None, 1.0)

    def ours() -> dict[str, Family]:
        state = State()
        for batch in sampler.tick(0.0):
            state.update(batch)
        return families(render(state.snapshot(0.0), openmetrics=False).decode())

    with NodeExporter(*EVERYTHING, *FILES, tree=tree) as exporter:
        readings = Readings(ours(), _theirs(exporter.page()), ours())
    sampler.stop()
    return readings
