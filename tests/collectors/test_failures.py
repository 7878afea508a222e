"""Cost of a collector's failure: its samples while it lasts, and one log line with its name and a remedy."""

from __future__ import annotations

import logging
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from trackside_daemon.collectors.cgroup.cgroup import CgroupCollector
from trackside_daemon.collectors.host.host import host_collectors
from trackside_daemon.collectors.process.process import ProcessCollector
from trackside_daemon.collectors.settings import CollectorsSection, PathSection, ThermalSection
from trackside_daemon.model.families import daemon
from trackside_daemon.model.rank_process import RankProcess
from trackside_daemon.sampling.sampler import Sampler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trackside_daemon.collectors.base import Collector
    from trackside_daemon.model.metric import Sample

MACHINES = Path(__file__).parent / "machines"
WAY_OUT = re.compile(r"; .+|, or .+|--[\w.-]+")
"""A line does not end with what is wrong."""
TURNS_OFF = re.compile(r"(;|(?<=\?)) --no-collector\.\w+ turns it off$")
"""What the sampler adds to every failure is no way to have the collector's samples."""


class Machine:
    """A copy of a machine that is a tree of files, and its collectors."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        members = tree / "members"
        pairs = [line.split() for line in members.read_text().splitlines()] if members.exists() else []
        ranks = [RankProcess("char-model", "id-7", 0, int(rank), int(rank), "815", int(pid)) for pid, rank in pairs]
        on = CollectorsSection(thermal=ThermalSection(enabled=True))
        roots = PathSection(procfs=str(tree / "proc"), sysfs=str(tree / "sys"))
        self.collectors: list[Collector] = [
            *host_collectors(on, roots, ("/",)),
            CgroupCollector(lambda: ranks, tree / "proc"),
            ProcessCollector(lambda: ranks, tree / "proc"),
        ]
        self.sampler = Sampler(self.collectors, lambda _: None, 1.0)

    def tick(self) -> dict[str, float]:
        """Return 1 for each collector that succeeded in a tick, 0 for each that failed."""
        about = self.sampler.tick(0.0)[-1].samples
        return {
            sample.labels[0]: float(sample.value == 1) for sample in about if sample.metric is daemon.COLLECTOR_SUCCESS
        }


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Callable[[str], Machine]]:
    """A function that sets up a machine: one of `machines`, or one without any file."""
    made: list[Machine] = []

    def make(name: str = "") -> Machine:
        tree = tmp_path / f"{len(made)}" / name
        for needed in {name, "plain"} if name else ():  # to which the others link
            shutil.copytree(MACHINES / needed, tree.parent / needed, symlinks=True)
        for root in ("proc", "sys"):
            (tree / root).mkdir(parents=True, exist_ok=True)
        made.append(Machine(tree))
        return made[-1]

    yield make
    for number, one in enumerate(made):
        one.sampler.stop()
        shutil.rmtree(tmp_path / f"{number}")


class Broken(NamedTuple):
    """A file of a machine that a collector needs, and the pattern in it that is replaced by garbage."""

    collector: str
    machine: str
    file: str
    garbage: bytes = rb"\d+"


NEEDED = [
    Broken("cpu", "plain", "proc/stat"),
    Broken("load", "plain", "proc/loadavg"),
    Broken("memory", "plain", "proc/meminfo"),
    Broken("vmstat", "plain", "proc/vmstat"),
    Broken("pressure", "plain", "proc/pressure/cpu"),
    Broken("disk", "plain", "proc/diskstats"),
    Broken("network", "plain", "proc/net/dev", rb"[\d:]+"),  # a device without numbers costs only itself
    Broken("time", "plain", "proc/stat"),
]
ALL = [collector.name for collector in Machine(Path("/nowhere")).collectors]


@pytest.mark.parametrize("name", ALL)
def test_a_collector_that_raises_costs_only_itself_and_is_logged_once(
    machine: Callable[[str], Machine], name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = machine("plain")
    sound = one.tick()
    collector = next(collector for collector in one.collectors if collector.name == name)

    def collect() -> list[Sample]:
        raise RuntimeError("a slip of ours")

    with caplog.at_level(logging.INFO, "trackside"), monkeypatch.context() as patch:
        patch.setattr(collector, "collect", collect)
        for _ in range(4):
            assert one.tick() == {**sound, name: 0}
    line = f"collector {name} fails: RuntimeError: a slip of ours; --no-collector.{name} turns it off"
    assert _lines(caplog, name) == [line]
    assert one.tick() == sound


@pytest.mark.parametrize("name", ALL)
def test_on_a_machine_without_files_a_collector_logs_once_what_would_cure_it(
    machine: Callable[[str], Machine], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    bare = machine("")
    with caplog.at_level(logging.INFO, "trackside"):
        success = [bare.tick()[name] for _ in range(4)]
    lines = _lines(caplog, name)
    assert len(lines) == (not any(success))
    assert all(map(_names_a_remedy, lines)), lines


@pytest.mark.parametrize("broken", NEEDED, ids=lambda broken: f"{broken.collector} {broken.file}")
@pytest.mark.parametrize("how", ["garbage", "unreadable"])
def test_a_file_that_cannot_be_read_costs_only_those_that_need_it_while_it_cannot(
    machine: Callable[[str], Machine], broken: Broken, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    sound = machine(broken.machine).tick()
    one = machine(broken.machine)
    file = one.tree / broken.file
    text = file.read_bytes()
    _break(file, broken.garbage if how == "garbage" else b"")
    with caplog.at_level(logging.INFO, "trackside"):
        for _ in range(4):
            success = one.tick()
    assert success[broken.collector] == 0
    also = {other.collector for other in NEEDED if other.file == broken.file}
    assert {name for name in sound if success[name] != sound[name]} <= also
    [line] = _lines(caplog, broken.collector)
    assert str(file) in line
    assert _names_a_remedy(line), line
    _mend(file, text)
    assert one.tick() == sound


@pytest.mark.parametrize("how", ["garbage", "unreadable"])
@pytest.mark.parametrize("name", sorted(path.name for path in MACHINES.iterdir()))
def test_where_nothing_makes_sense_each_collector_has_nothing_or_logs_once_what_would_cure_it(
    machine: Callable[[str], Machine], name: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = machine(name)
    for file in [file for root in ("proc", "sys") for file in (one.tree / root).resolve().rglob("*") if file.is_file()]:
        _break(file, rb"\d+" if how == "garbage" else b"")
    with caplog.at_level(logging.INFO, "trackside"):
        for _ in range(4):
            success = one.tick()
    assert set(success) == set(ALL)
    assert {collector for collector in ALL if not success[collector]} >= {"cpu", "load"}
    for collector in ALL:
        lines = _lines(caplog, collector)
        assert len(lines) == (not success[collector]), lines
        assert all(map(_names_a_remedy, lines)), lines


def _names_a_remedy(line: str) -> bool:
    """Return whether the line names a remedy other than turning the collector off."""
    return WAY_OUT.search(TURNS_OFF.sub("", line)) is not None


def _break(file: Path, garbage: bytes) -> None:
    if garbage:
        file.write_bytes(re.sub(garbage, b"\xff\x00x", file.read_bytes()))
    else:  # even for root
        file.unlink()
        file.mkdir()


def _mend(file: Path, text: bytes) -> None:
    if file.is_dir():
        file.rmdir()
    file.write_bytes(text)


def _lines(caplog: pytest.LogCaptureFixture, name: str) -> list[str]:
    return [text for text in caplog.messages if text.startswith(f"collector {name} ") and "works again" not in text]


def test_a_system_without_proc_has_no_collectors_unless_it_is_linux(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = PathSection(procfs=str(tmp_path))
    assert host_collectors(CollectorsSection(), path, ()), "on Linux, a missing procfs is an error of the collectors"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert host_collectors(CollectorsSection(), path, ()) == []
    assert host_collectors(CollectorsSection(), PathSection(), ())
