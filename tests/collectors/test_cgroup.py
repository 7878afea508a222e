"""Cgroups as files, over time; whole machines are in test_machines.py. The last test makes a real one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from process_endings import memory_cgroup
from processes import DEADLINE

from trackside_daemon.collectors.base import NothingToCollect
from trackside_daemon.collectors.cgroup.cgroup import FIND_SECONDS, HOLD_SECONDS, LIMITS_SECONDS, CgroupCollector
from trackside_daemon.linux.oom import OomKills
from trackside_daemon.model.rank_process import RankProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

V2 = "30 23 0:26 / {0} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "35 31 0:32 / {0}/memory rw,relatime - cgroup cgroup rw,memory\n"
    "36 31 0:33 / {0}/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
)
EVENTS = "low 0\nhigh 0\nmax 0\noom 0\noom_kill {0}\noom_group_kill 0\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {0}\n"
KILLS = "trackside_cgroup_oom_kills_total"
NO_LIMIT = "9223372036854771712\n"


def member(pid: int, rank: int = 0) -> RankProcess:
    return RankProcess("a", "id-a", 0, rank, rank, "", pid)


class Machine:
    """A machine of files on which some processes train, and the collector on it; *now* is its clock."""

    def __init__(self, place: Path, mountinfo: str = V2) -> None:
        self.proc, self.top, self.now = place / "proc", place / "cgroup", 1000.0
        self.members: tuple[RankProcess, ...] = ()
        self.write(self.proc / "self" / "mountinfo", mountinfo.format(self.top))
        self.write(self.proc / "vmstat", "oom_kill 5\n")
        self.write(self.top / "cgroup.controllers", "memory")
        self.collector = CgroupCollector(lambda: self.members, self.proc, clock=lambda: self.now)

    def write(self, file: Path, text: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def has(self, cgroup: str, **files: str) -> None:
        """Write files of a cgroup; their names have ``__`` for the dot."""
        for name, text in {**files, "cgroup__events": "populated 1\n"}.items():
            self.write(self.top / cgroup / name.replace("__", "."), text)

    def trains(self, pid: int, cgroup: str) -> None:
        self.write(self.proc / str(pid) / "cgroup", cgroup)
        if pid not in {one.pid for one in self.members}:
            self.members += (member(pid, len(self.members)),)

    def ends(self, pid: int) -> None:
        shutil.rmtree(self.proc / str(pid))
        self.members = tuple(one for one in self.members if one.pid != pid)

    def loses(self, cgroup: str) -> None:
        """Remove a cgroup; a reader that has its files open reads nothing more from them."""
        for file in (self.top / cgroup).glob("memory.*"):
            file.write_text("")
        shutil.rmtree(self.top / cgroup)

    def page(self, after: float = 0.0) -> dict[str, Any]:
        """Return the values *after* so many seconds, by metric name and the labels that follow the cgroup's."""
        self.now += after
        return {".".join((one.metric.name, *one.labels[1:])): one.value for one in self.collector.collect()}


@pytest.fixture
def v2(tmp_path: Path) -> Machine:
    """One process trains in /job/step."""
    machine = Machine(tmp_path)
    for cgroup in ("job", "job/step"):
        machine.has(cgroup, memory__events=EVENTS.format(2), memory__current="100", memory__stat="inactive_file 30\n")
    machine.trains(7, "0::/job/step\n")
    return machine


@pytest.fixture
def v1(tmp_path: Path) -> Machine:
    """A machine with cgroups v1 where one process trains in /job/step, and only that cgroup counts its kills."""
    machine = Machine(tmp_path, V1)
    machine.has("memory/job/step", memory__oom_control=CONTROL.format(0), memory__usage_in_bytes="100")
    machine.trains(7, "4:memory:/job/step\n1:cpu,cpuacct:/\n")
    machine.write(machine.top / "cpu" / "release_agent", "")
    machine.write(machine.top / "cpu" / "cpuacct.stat", "user 1\nsystem 1\n")
    return machine


def test_without_a_training_there_is_nothing(tmp_path: Path) -> None:
    assert Machine(tmp_path).page() == {}


def test_a_process_that_has_just_ended_is_no_failure(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.members = (member(7),)
    assert machine.page() == {}


def test_the_parent_of_a_cgroup_that_is_gone_is_not_mistaken_for_it(v2: Machine) -> None:
    v2.loses("job/step")
    assert v2.page() == {}


@pytest.mark.parametrize(
    ("cgroup", "pid", "cure"),
    [
        ("0::/../train\n", 7, r"--path\.sysfs"),
        ("4:memory:/train\n", 7, r"--path\.sysfs"),
        ("0::/\n", 7, "systemd-run --scope"),
        ("0::/\n", 0, "pid namespace"),
    ],
)
def test_an_invisible_value_is_reported_with_what_would_help(tmp_path: Path, cgroup: str, pid: int, cure: str) -> None:
    machine = Machine(tmp_path)
    machine.write(machine.top / "cpu.stat", "user_usec 1\nsystem_usec 1\n")
    machine.trains(pid, cgroup)
    for _ in range(2):
        with pytest.raises(NothingToCollect, match=cure):
            machine.page(after=HOLD_SECONDS)


def test_the_working_set_is_what_is_used_less_what_is_seldom_read(v2: Machine) -> None:
    assert v2.page()["trackside_cgroup_memory_working_set_bytes"] == 70
    v2.has("job/step", memory__current="20")
    assert v2.page()["trackside_cgroup_memory_working_set_bytes"] == 0


STAT = "inactive_file 30\nactive_file 40\nslab_reclaimable 5\nanon 20\nshmem 4\n"


def test_what_is_dropped_before_anything_is_killed_is_not_held(v2: Machine) -> None:
    held = "trackside_cgroup_memory_unreclaimable_bytes"
    assert held not in v2.page()
    v2.has("job/step", memory__stat=STAT)
    page = v2.page()
    assert (page["trackside_cgroup_memory_working_set_bytes"], page[held]) == (70, 25)


def test_with_v1_too(v1: Machine) -> None:
    v1.has("memory/job/step", memory__stat="total_inactive_file 30\ntotal_active_file 40\nactive_file 1\n")
    page = v1.page()
    assert page["trackside_cgroup_memory_working_set_bytes"] == 70
    assert page["trackside_cgroup_memory_unreclaimable_bytes"] == 30


def test_a_file_that_cannot_be_read_costs_only_what_it_has(v2: Machine) -> None:
    v2.has("job/step", memory__stat="anon many\n", memory__peak="110\n", cpu__pressure="some total=many\n")
    (v2.top / "job/step/memory.current").unlink()
    (v2.top / "job/step/pids.current").mkdir()
    page = v2.page()
    assert page["trackside_cgroup_memory_peak_bytes"] == 110
    assert {name.split(".")[0] for name in page} == {
        "trackside_cgroup_memory_peak_bytes",
        "trackside_cgroup_memory_events_total",
        KILLS,
    }


def test_what_the_own_cgroup_does_not_count_is_charged_to_the_one_above(v2: Machine) -> None:
    v2.loses("job/step")
    v2.has("job/step", cpu__stat="user_usec 1500000\nsystem_usec 500000\n")
    page = v2.page()
    assert page["trackside_cgroup_memory_used_bytes"] == 100
    assert page["trackside_cgroup_cpu_seconds_total.user"] == 1.5


@pytest.mark.parametrize(
    ("own", "above", "hierarchical", "limit"),
    [
        (NO_LIMIT, NO_LIMIT, NO_LIMIT, None),
        (NO_LIMIT, "4096\n", NO_LIMIT, 4096),
        ("8192\n", "4096\n", NO_LIMIT, 4096),
        ("8192\n", NO_LIMIT, "2048\n", 2048),
    ],
)
def test_with_v1_the_smallest_limit_holds_also_one_that_is_not_seen(
    v1: Machine, own: str, above: str, hierarchical: str, limit: int | None
) -> None:
    v1.has("memory/job", memory__limit_in_bytes=above)
    v1.has(
        "memory/job/step", memory__limit_in_bytes=own, memory__stat=f"cache 1\nhierarchical_memory_limit {hierarchical}"
    )
    assert v1.page().get("trackside_cgroup_memory_limit_bytes") == limit


@pytest.mark.parametrize(("own", "above", "used"), [("max", "4096", 900), ("4096", "4096", 900), ("2048", "4096", 100)])
def test_the_used_share_of_the_limit_is_reported_for_the_cgroup_that_has_it(
    v2: Machine, own: str, above: str, used: int
) -> None:
    v2.has("job", memory__max=f"{above}\n", memory__current="900\n")
    v2.has("job/step", memory__max=f"{own}\n")
    page = v2.page()
    assert page["trackside_cgroup_memory_limit_used_bytes"] == used
    assert page["trackside_cgroup_memory_used_bytes"] == 100


def test_with_v1_the_used_share_of_an_unseen_limit_is_not_reported(v1: Machine) -> None:
    v1.has("memory/job", memory__limit_in_bytes="4096\n", memory__usage_in_bytes="900\n")
    v1.has("memory/job/step", memory__limit_in_bytes="8192\n", memory__stat="hierarchical_memory_limit 4096\n")
    assert v1.page()["trackside_cgroup_memory_limit_used_bytes"] == 900
    v1.has("memory/job/step", memory__stat="hierarchical_memory_limit 2048\n")
    assert "trackside_cgroup_memory_limit_used_bytes" not in v1.page(after=LIMITS_SECONDS)


def test_the_root_of_a_hierarchy_is_the_machine_and_is_not_reported(v1: Machine) -> None:
    v1.has("memory/job/step", memory__stat="total_rss 1\n")
    assert not {name for name in v1.page() if "cpu" in name}


def test_limits_are_read_again_only_now_and_then(v2: Machine) -> None:
    v2.has("job", memory__max="4096\n")
    assert v2.page()["trackside_cgroup_memory_limit_bytes"] == 4096
    v2.has("job", memory__max="max\n")
    assert v2.page(after=LIMITS_SECONDS - 1)["trackside_cgroup_memory_limit_bytes"] == 4096
    assert "trackside_cgroup_memory_limit_bytes" not in v2.page(after=1)


def test_throttling_is_that_of_the_smallest_limit(v2: Machine) -> None:
    v2.has("job/step", cpu__max="800000 100000\n", cpu__stat="nr_periods 5\nnr_throttled 1\nthrottled_usec 1000\n")
    v2.has("job", cpu__max="200000 100000\n", cpu__stat="nr_periods 9\nnr_throttled 3\nthrottled_usec 2500000\n")
    page = v2.page()
    assert page["trackside_cgroup_cpu_limit_cores"] == 2
    assert page["trackside_cgroup_cpu_periods_total"] == 9
    assert page["trackside_cgroup_cpu_throttled_periods_total"] == 3
    assert page["trackside_cgroup_cpu_throttled_seconds_total"] == 2.5


def throttled(v2: Machine, cgroup: str, cores: int, count: int) -> None:
    stat = f"nr_periods {count}\nnr_throttled {count}\nthrottled_usec {count}000000\n"
    v2.has(cgroup, cpu__max=f"{cores}00000 100000\n", cpu__stat=stat)


def test_throttling_does_not_jump_when_another_limit_becomes_the_smallest(v2: Machine) -> None:
    counts = []

    def check_page(after: float) -> None:
        page = v2.page(after=after)
        observed = [value for name, value in page.items() if "periods" in name or "throttled" in name]
        assert observed == observed[:1] * 3
        counts.append(observed[0])

    throttled(v2, "job/step", 2, 5)
    throttled(v2, "job", 8, 900)
    check_page(0)
    throttled(v2, "job/step", 16, 7)
    check_page(1)
    throttled(v2, "job", 8, 903)
    check_page(LIMITS_SECONDS)
    throttled(v2, "job", 8, 905)
    check_page(1)
    throttled(v2, "job/step", 2, 9)
    check_page(LIMITS_SECONDS)
    throttled(v2, "job/step", 2, 10)
    check_page(1)
    v2.loses("job/step")
    v2.page(after=1)
    v2.has("job/step", memory__events=EVENTS.format(0))
    throttled(v2, "job/step", 2, 1)
    check_page(1)
    assert counts == [5, 7, 7, 9, 9, 10, 11]


def test_a_process_that_is_moved_is_found_again(v2: Machine) -> None:
    v2.page()
    v2.has("other", memory__current="500", memory__stat="")
    v2.trains(7, "0::/other\n")
    assert v2.page(after=FIND_SECONDS - 1)["trackside_cgroup_memory_used_bytes"] == 100
    assert v2.page(after=1)["trackside_cgroup_memory_used_bytes"] == 500


def test_one_that_comes_is_found_at_once(v2: Machine) -> None:
    v2.page()
    v2.has("other", memory__current="500", memory__stat="")
    v2.trains(8, "0::/other\n")
    v2.page(after=1)
    assert {one.labels[0] for one in v2.collector.collect()} == {"/job/step", "/other"}


def test_a_kill_that_outlived_its_cgroup_is_reported_by_the_one_above(v2: Machine) -> None:
    assert v2.page()[KILLS] == 2
    v2.has("job", memory__events=EVENTS.format(3))
    v2.loses("job/step")
    assert v2.page(after=1) == {KILLS: 3}


def test_a_kill_that_came_after_it_is_a_neighbours(v2: Machine) -> None:
    v2.page()
    v2.loses("job/step")
    assert v2.page(after=1) == {KILLS: 2}
    v2.has("job", memory__events=EVENTS.format(3))
    assert v2.page(after=1) == {KILLS: 2}


def test_when_all_cgroups_of_a_job_are_gone_the_nearest_that_is_left_reports(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    for cgroup in ("slurm", "slurm/job", "slurm/job/step"):
        machine.has(cgroup, memory__events=EVENTS.format(0), memory__current="1", memory__stat="")
    machine.trains(7, "0::/slurm/job/step\n")
    machine.page()
    machine.has("slurm", memory__events=EVENTS.format(1))
    machine.loses("slurm/job/step")
    machine.loses("slurm/job")
    assert machine.page(after=1) == {KILLS: 1}


@pytest.mark.parametrize("before", [True, False], ids=["seen", "unseen"])
def test_a_kill_is_held_with_v1_and_by_the_machines_count_when_it_was_not_seen(v1: Machine, *, before: bool) -> None:
    assert v1.page()[KILLS] == 0
    v1.has("memory/job/step", memory__oom_control=CONTROL.format(1))
    v1.write(v1.proc / "vmstat", "oom_kill 6\n")
    if before:
        assert v1.page(after=1)[KILLS] == 1
    v1.loses("memory/job/step")
    v1.ends(7)
    assert v1.page(after=1) == {KILLS: 1}


def test_kills_stay_for_a_while_after_the_training(v2: Machine) -> None:
    v2.page()
    v2.ends(7)
    assert v2.page(after=HOLD_SECONDS) == {KILLS: 2}
    assert v2.page(after=1) == {}
    files = {str(one.readlink()) for one in Path("/proc/self/fd").iterdir() if one.exists()}
    assert not [file for file in files if file.startswith(str(v2.top))], "all files are closed"


def test_a_cgroup_that_comes_again_under_its_name_counts_on(v2: Machine) -> None:
    """A service that systemd restarts is back before the next scrape."""
    v2.page()
    for kills in (3, 4):
        v2.has("job", memory__events=EVENTS.format(kills))
        v2.loses("job/step")
        assert v2.page(after=1) == {KILLS: kills}
        v2.has("job/step", memory__events=EVENTS.format(0), memory__current="1", memory__stat="")
        assert v2.page(after=1)[KILLS] == kills
    v2.has("job/step", memory__events=EVENTS.format(1))
    assert v2.page(after=1)[KILLS] == 5


def test_those_above_that_come_again_too_are_asked_anew(v2: Machine) -> None:
    """The second step of a requeued job comes a tick later than the first."""
    v2.has("job/other", memory__events=EVENTS.format(0), memory__current="1", memory__stat="")
    v2.trains(8, "0::/job/other\n")
    v2.page()
    for cgroup in ("job/step", "job/other", "job"):
        v2.loses(cgroup)
    v2.page(after=1)
    for cgroup in ("job", "job/step"):
        v2.has(cgroup, memory__events=EVENTS.format(0), memory__current="1", memory__stat="")
    v2.page(after=1)
    v2.has("job", memory__events=EVENTS.format(1))
    v2.loses("job/step")
    kills = {one.labels[0]: one.value for one in v2.collector.collect() if one.metric.name == KILLS}
    assert kills == {"/job/step": 3, "/job/other": 0}


def test_the_kills_stay_when_the_other_controllers_of_a_cgroup_move(v1: Machine) -> None:
    v1.has("memory/job/step", memory__oom_control=CONTROL.format(1))
    v1.page()
    v1.has("cpu/job", cpuacct__stat="user 1\nsystem 1\n")
    v1.trains(7, "4:memory:/job/step\n1:cpu,cpuacct:/job\n")
    assert v1.page(after=FIND_SECONDS)[KILLS] == 1
    v1.loses("memory/job/step")
    assert v1.page(after=1)[KILLS] == 1


def test_the_verdict_on_an_end_is_the_same(v2: Machine) -> None:
    verdict = OomKills(v2.proc)
    watched = verdict.watch(7, v2.now)
    v2.page()
    v2.has("job", memory__events=EVENTS.format(3))
    v2.loses("job/step")
    assert verdict.killed(watched, v2.now + 1) == (v2.page(after=1)[KILLS] > 2) is True


HOG = """
import os, sys
with open(sys.argv[1], "w") as file:
    file.write(str(os.getpid()))
few = bytearray(32 << 20)
print("trains", flush=True)
sys.stdin.readline()
many = bytearray(1 << 30)
"""
"""Joins a cgroup, and asks for too much memory when a line comes."""


@pytest.fixture
def cgroup() -> Iterator[tuple[ExitStack, Path]]:
    """A cgroup with little memory, which exists until the stack is closed."""
    with ExitStack() as stack:
        try:
            joins = stack.enter_context(memory_cgroup(f"trackside-test-cgroup-{os.getpid()}"))
        except OSError as error:  # only root can, and in most containers nobody
            pytest.skip(f"a process's memory cannot be limited here: {error}")
        yield stack, joins


@pytest.mark.parametrize("seen", [True, False], ids=["seen", "unseen"])
def test_a_real_kill_is_held_when_the_cgroup_is_gone(cgroup: tuple[ExitStack, Path], *, seen: bool) -> None:
    life, joins = cgroup
    name = f"/{joins.parent.name}"
    with subprocess.Popen(
        [sys.executable, "-c", HOG, str(joins)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as hog:
        assert hog.stdout is not None
        assert hog.stdout.readline() == "trains\n"
        collector = CgroupCollector(lambda: (member(hog.pid),), Path("/proc"))

        def reported() -> dict[str, Any]:
            return {one.metric.name: one.value for one in collector.collect() if one.labels[0] == name}

        page = reported()
        assert 128 << 20 >= page["trackside_cgroup_memory_used_bytes"] >= 32 << 20
        assert page["trackside_cgroup_memory_anonymous_bytes"] >= 30 << 20, "kernels count some pages late"
        assert page["trackside_cgroup_memory_limit_bytes"] == 128 << 20
        assert page[KILLS] == 0
        hog.communicate("go\n", timeout=DEADLINE)
    if seen:
        assert reported()[KILLS] == 1
    life.close()
    assert reported()[KILLS] >= 1, "the machine reports a kill that was not seen, and it may have had more"
    assert set(reported()) == {KILLS}
