"""Counts of the OOM killer: of cgroup v1 and v2 and of the machine, as files; a real kill is in test_ends.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from trackside_daemon.linux.oom import TEARDOWN_SECONDS, OomKills, OomWatch

PID = 7
EVENTS = "low 0\nhigh 3\nmax 17\noom {0}\noom_kill {0}\noom_group_kill 0\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {0}\n"
VMSTAT = "nr_free_pages 81\noom_kill {0}\nswap_ra 0\n"


class Machine:
    """A /proc and a cgroup file system, as files."""

    def __init__(self, place: Path, cgroup: str, mountinfo: str) -> None:
        self.proc, self.cgroups = place / "proc", place / "cgroup"
        self.write(self.proc / "self" / "mountinfo", mountinfo.format(self.cgroups))
        self.write(self.proc / str(PID) / "cgroup", cgroup)
        self.machine_wide(0)

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def machine_wide(self, count: int) -> None:
        self.write(self.proc / "vmstat", VMSTAT.format(count))

    def v2(self, cgroup: str, count: int) -> None:
        self.write(self.cgroups / cgroup / "memory.events", EVENTS.format(count))

    def v1(self, cgroup: str, count: int) -> None:
        self.write(self.cgroups / "memory" / cgroup / "memory.oom_control", CONTROL.format(count))


ONLY_V2 = "30 23 0:26 / {0} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
HYBRID = (
    "35 31 0:32 / {0}/memory rw,relatime - cgroup cgroup rw,memory\n"
    "36 31 0:33 / {0}/devices rw,relatime - cgroup cgroup rw,devices\n"
    "41 31 0:38 / {0}/unified rw,relatime - cgroup2 cgroup2 rw\n"
)
IN_A_CONTAINER = "35 31 0:32 /docker/abc {0}/memory ro - cgroup cgroup rw,memory\n"


@pytest.fixture
def v2(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path, "0::/pod/train\n", ONLY_V2)
    for cgroup in ("pod", "pod/train"):
        machine.v2(cgroup, 2)
    return machine


@pytest.fixture
def v1(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path, "9:name=systemd:/\n4:memory:/job/step\n1:cpu,cpuacct:/\n0::/\n", HYBRID)
    for cgroup in ("job", "job/step"):
        machine.v1(cgroup, 2)
    return machine


def watching(machine: Machine) -> tuple[OomKills, OomWatch]:
    """Return the counts of a machine, and a process that is watched from 10 s on."""
    kills = OomKills(machine.proc)
    return kills, kills.watch(PID, 10.0)


def test_kills_of_before_are_no_evidence(v2: Machine) -> None:
    kills, watched = watching(v2)
    kills.tick(11.0)
    assert not kills.killed(watched, 12.0)


def test_a_kill_in_the_cgroup_is_evidence_with_v2(v2: Machine) -> None:
    kills, watched = watching(v2)
    v2.v2("pod/train", 3)
    assert kills.killed(watched, 11.0)


def test_a_kill_in_the_cgroup_is_evidence_with_v1_beside_a_v2_without_controllers(v1: Machine) -> None:
    kills, watched = watching(v1)
    v1.v1("job/step", 3)
    assert kills.killed(watched, 11.0)


@pytest.mark.parametrize("elsewhere", ["parent", "machine"])
def test_a_kill_elsewhere_is_none_while_the_own_cgroup_reports(v2: Machine, elsewhere: str) -> None:
    kills, watched = watching(v2)
    v2.v2("pod", 3) if elsewhere == "parent" else v2.machine_wide(1)
    assert not kills.killed(watched, 11.0)


def test_when_the_cgroup_is_gone_a_kill_that_a_tick_has_seen_is_remembered(v1: Machine) -> None:
    kills, watched = watching(v1)
    v1.v1("job/step", 3)
    kills.tick(11.0)
    v1.v1("job/step", 0)
    assert kills.killed(watched, 12.0)


def test_when_the_cgroup_is_gone_the_one_above_reports_with_v2(v2: Machine) -> None:
    kills, watched = watching(v2)
    (v2.cgroups / "pod" / "train" / "memory.events").write_text("")  # a cgroup that is gone cannot be read any more
    v2.v2("pod", 3)
    assert kills.killed(watched, 11.0)


def test_where_no_cgroup_counts_the_machine_does(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/\n", ONLY_V2)
    kills, watched = watching(machine)
    assert not kills.killed(watched, 11.0)
    machine.machine_wide(1)
    assert kills.killed(watched, 12.0)


def test_a_process_that_takes_long_to_end_was_killed_all_the_same(v2: Machine) -> None:
    kills, watched = watching(v2)
    v2.v2("pod/train", 3)
    kills.tick(11.0)
    assert kills.killed(watched, 11.0 + TEARDOWN_SECONDS - 0.1)
    assert not kills.killed(watched, 11.0 + TEARDOWN_SECONDS + 0.1)


def test_a_kill_before_a_process_began_is_not_its_own(v2: Machine) -> None:
    kills = OomKills(v2.proc)
    first = kills.watch(PID, 10.0)
    v2.v2("pod/train", 3)
    second = kills.watch(PID, 11.0)
    assert kills.killed(first, 12.0)
    assert not kills.killed(second, 12.0)


def test_a_container_that_sees_its_own_cgroup_as_the_root_finds_it(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "4:memory:/docker/abc/rank0\n", IN_A_CONTAINER)
    machine.v1("rank0", 0)
    kills, watched = watching(machine)
    machine.v1("rank0", 1)
    assert kills.killed(watched, 11.0)


@pytest.mark.parametrize("cgroup", ["4:memory:/docker/abcd\n", "4:memory:/docker/abc/../other\n", "0::/\n", ""])
def test_a_cgroup_outside_of_what_is_mounted_is_not_sought(tmp_path: Path, cgroup: str) -> None:
    machine = Machine(tmp_path, cgroup, IN_A_CONTAINER)
    kills = OomKills(machine.proc)
    assert kills.watch(PID, 10.0).paths == (machine.proc / "vmstat",)


def test_without_proc_there_is_no_evidence(tmp_path: Path) -> None:
    kills = OomKills(tmp_path)
    assert not kills.killed(kills.watch(PID, 10.0), 11.0)


def test_a_file_is_open_once_for_all_and_closed_with_the_last(v2: Machine) -> None:
    def open_files() -> list[str]:
        links = list(Path("/proc/self/fd").iterdir())
        paths = [str(link.readlink()) for link in links if link.is_symlink()]
        return [path for path in paths if path.startswith(str(v2.proc.parent))]

    kills = OomKills(v2.proc)
    both = [kills.watch(PID, 10.0), kills.watch(PID, 11.0)]
    assert len(open_files()) == 3, "train, pod and the machine"
    kills.release(both[0])
    assert not kills.killed(both[1], 12.0)
    kills.release(both[1])
    assert open_files() == []
