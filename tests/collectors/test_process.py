"""Resources that ranks and their child processes use, from files in the form of /proc."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from collectors.trees import FIRST, Proc, member
from processes import eventually

from trackside_daemon.collectors.base import NothingToCollect
from trackside_daemon.collectors.process import process as smaps
from trackside_daemon.collectors.process import process_tree, rank_usage
from trackside_daemon.collectors.process.process import ProcessCollector
from trackside_daemon.collectors.process.process_tree import WORKER
from trackside_daemon.collectors.process.rank_usage import GENERATION_SECONDS, LATER_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trackside_daemon.model.rank_process import RankProcess

PAGE, TICK = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
RANK, OTHER_RANK = FIRST, FIRST + 1
FIRST_WORKER, SECOND_WORKER, HELPER = FIRST + 10, FIRST + 11, FIRST + 20
LOADER = '{run="char-model",rank="0"}'


class Machine:
    """Processes, the ranks among them, and a clock that the test sets.

    Attributes:
        members: The ranks.
        now: The time of the clock.
    """

    def __init__(self, place: Path) -> None:
        self.proc = Proc(place)
        self.members: tuple[RankProcess, ...] = (member(RANK),)
        self.now = 0.0
        self.collector = self.collects()

    def collects(self, *, smaps: bool = False) -> ProcessCollector:
        """Return a collector that has not read anything yet."""
        return ProcessCollector(
            lambda: self.members, self.proc.place, smaps=smaps, clock=lambda: self.now, wall=lambda: 1_760_000_000.0
        )

    def page(self, after: float = 1.0) -> dict[str, float]:
        """Return the values of all series, *after* so many seconds."""
        self.now += after
        found = {}
        for one in self.collector.collect():
            labels = ",".join(f'{name}="{value}"' for name, value in zip(one.metric.labels, one.labels, strict=True))
            key = f"{one.metric.name}{{{labels}}}".removeprefix("trackside_")
            assert key not in found
            assert isinstance(one.value, int | float)
            found[key] = one.value
        return found

    def roles(self) -> dict[int, str]:
        """Return the role of each process in the last tick, by pid."""
        return {one.pid: one.role for one in self.collector.processes}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    one = Machine(tmp_path)
    one.proc.run(RANK)
    return one


def test_the_workers_of_a_rank_are_summed_and_so_are_the_others(machine: Machine) -> None:
    machine.proc.run(FIRST_WORKER, RANK, comm=WORKER, start=600)
    machine.proc.run(SECOND_WORKER, RANK, comm=WORKER, state="D", start=601, resident=3000, shared=500, read=100)
    machine.proc.run(HELPER, RANK, comm="wandb-core", start=602, resident=50, user=7, system=3)
    machine.page()
    page = machine.page()
    assert page[f"dataloader_workers{LOADER}"] == 2
    assert page[f"dataloader_blocked_workers{LOADER}"] == 1
    assert page[f"dataloader_resident_memory_bytes{LOADER}"] == 4000 * PAGE
    assert page[f"dataloader_shared_memory_bytes{LOADER}"] == 900 * PAGE
    assert page[f"dataloader_anonymous_memory_bytes{LOADER}"] == 3100 * PAGE
    assert page[f"dataloader_cpu_seconds_total{LOADER}"] == 800 / TICK
    assert page[f"dataloader_read_bytes_total{LOADER}"] == 4196
    assert page[f'process_children{{pid="{RANK}"}}'] == 1
    assert page[f'process_children_resident_memory_bytes{{pid="{RANK}"}}'] == 50 * PAGE
    assert page[f'process_children_cpu_seconds_total{{pid="{RANK}"}}'] == 10 / TICK
    assert machine.roles() == {
        RANK: "rank",
        FIRST_WORKER: "dataloader",
        SECOND_WORKER: "dataloader",
        HELPER: "other",
    }


def test_figures_of_ended_workers_are_retained_and_another_of_the_same_pid_adds_to_them(machine: Machine) -> None:
    cpu, read = f"dataloader_cpu_seconds_total{LOADER}", f"dataloader_read_bytes_total{LOADER}"
    machine.proc.run(FIRST_WORKER, RANK, comm=WORKER, start=600)
    assert machine.page()[cpu] == 0
    assert machine.page()[cpu] == 400 / TICK
    machine.proc.run(FIRST_WORKER, RANK, comm=WORKER, start=600, user=350, read=5000)
    assert machine.page()[cpu] == 450 / TICK
    machine.proc.end(FIRST_WORKER)
    page = machine.page()
    assert (page[f"dataloader_workers{LOADER}"], page[cpu], page[read]) == (0, 450 / TICK, 5000)
    machine.proc.run(FIRST_WORKER, RANK, comm=WORKER, start=900, user=10, system=0, read=1)
    machine.page()
    page = machine.page()
    assert (page[cpu], page[read]) == (460 / TICK, 5001)


def test_a_process_out_of_sight_for_a_moment_is_not_counted_twice(machine: Machine) -> None:
    cpu = f"dataloader_cpu_seconds_total{LOADER}"
    machine.proc.run(FIRST_WORKER, RANK, comm=WORKER)
    machine.page()
    for after, parent in ((1, RANK), (GENERATION_SECONDS / 2, 1), (GENERATION_SECONDS / 2, RANK), (1, RANK)):
        machine.proc.run(FIRST_WORKER, parent, comm=WORKER)
        assert machine.page(after)[cpu] == 400 / TICK


def test_a_worker_that_was_spawned_is_one_once_it_has_its_name(machine: Machine) -> None:
    machine.proc.run(FIRST_WORKER, RANK, start=600)
    assert machine.page()[f"dataloader_cpu_seconds_total{LOADER}"] == 0
    machine.proc.run(FIRST_WORKER, RANK, start=600, comm=WORKER, user=310)
    machine.page()
    page = machine.page()
    assert page[f"dataloader_cpu_seconds_total{LOADER}"] == 10 / TICK, "the rest is reported already"
    assert page[f'process_children_cpu_seconds_total{{pid="{RANK}"}}'] == 400 / TICK


def test_a_fork_of_a_rank_is_no_worker_without_the_name(machine: Machine) -> None:
    machine.proc.run(HELPER, RANK)
    for _ in range(3):
        machine.page()
        assert machine.roles() == {RANK: "rank", HELPER: "other"}


def test_a_process_with_the_name_is_a_worker_from_the_second_tick_on_as_exec_may_follow(machine: Machine) -> None:
    machine.proc.run(FIRST_WORKER, RANK, comm=WORKER)
    machine.proc.run(HELPER, RANK, comm=WORKER)
    machine.page()
    assert machine.roles() == {RANK: "rank", FIRST_WORKER: "other", HELPER: "other"}
    machine.proc.run(HELPER, RANK, comm="false")
    machine.page()
    assert machine.roles() == {RANK: "rank", FIRST_WORKER: "dataloader", HELPER: "other"}


def test_children_of_a_worker_are_no_workers_also_after_they_are_reparented(machine: Machine) -> None:
    machine.proc.run(FIRST_WORKER, RANK, comm=WORKER)
    machine.proc.run(SECOND_WORKER, FIRST_WORKER, comm=WORKER)
    machine.proc.run(HELPER, SECOND_WORKER, comm=WORKER)
    for _ in range(3):
        machine.page()
    expected = {RANK: "rank", FIRST_WORKER: "dataloader", SECOND_WORKER: "other", HELPER: "other"}
    assert machine.roles() == expected
    machine.proc.end(FIRST_WORKER)
    machine.proc.run(SECOND_WORKER, RANK, comm=WORKER)
    for _ in range(3):
        machine.page()
        assert machine.roles() == {RANK: "rank", SECOND_WORKER: "other", HELPER: "other"}


def test_two_ranks_are_distinguished_and_one_that_started_the_other_does_not_count_it(machine: Machine) -> None:
    machine.members = (member(RANK), member(OTHER_RANK, 1))
    machine.proc.run(OTHER_RANK, RANK)
    machine.proc.run(FIRST_WORKER, OTHER_RANK, comm=WORKER)
    machine.page()
    page = machine.page()
    assert page[f"dataloader_workers{LOADER}"] == 0
    assert page['dataloader_workers{run="char-model",rank="1"}'] == 1
    assert page[f'process_children{{pid="{RANK}"}}'] == 0
    assert [(one.pid, one.rank) for one in machine.collector.processes] == [
        (RANK, 0),
        (OTHER_RANK, 1),
        (FIRST_WORKER, 1),
    ]


def test_the_oldest_of_several_runs_in_a_process_has_the_workers_and_retains_their_figures(machine: Machine) -> None:
    first, second = member(RANK, run="first", run_id="id-1"), member(RANK, run="second", run_id="id-2")
    cpu = 'dataloader_cpu_seconds_total{run="%s",rank="0"}'
    machine.proc.run(FIRST_WORKER, RANK, comm=WORKER)
    machine.members = (first,)
    machine.page()
    before = machine.page()[cpu % "first"]
    assert before > 0
    machine.members = (first, second)
    page = machine.page()
    assert {key for key in page if key.startswith("dataloader_workers")} == {'dataloader_workers{run="first",rank="0"}'}
    assert page[cpu % "first"] == before
    machine.members = (second,)
    page = machine.page()
    assert page['dataloader_workers{run="second",rank="0"}'] == 1
    assert (page[cpu % "second"], cpu % "first" in page) == (0, False)


def test_figures_of_a_rank_s_workers_are_retained_while_its_process_cannot_be_seen(machine: Machine) -> None:
    cpu = f"dataloader_cpu_seconds_total{LOADER}"
    machine.proc.run(FIRST_WORKER, RANK, comm=WORKER)
    machine.page()
    before = machine.page()[cpu]
    stat = machine.proc.place / str(RANK) / "stat"
    stat.rename(stat.with_name("hidden"))
    assert cpu not in machine.page()
    stat.with_name("hidden").rename(stat)
    assert machine.page()[cpu] == before > 0


def test_the_next_process_of_a_pid_is_the_younger_runs_though_the_older_has_not_sent_its_end(machine: Machine) -> None:
    machine.page()
    machine.proc.run(RANK, start=900)
    machine.members = (member(RANK), member(RANK, run="second", run_id="id-8"))
    machine.page()
    assert [one.run for one in machine.collector.processes] == ["second"]


def test_pids_that_are_all_hidden_are_logged_with_what_would_show_them(machine: Machine) -> None:
    machine.members = (member(0), member(0, rank=1))
    for _ in range(2):
        with pytest.raises(NothingToCollect, match="hostPID"):
            machine.page()
    machine.members = ()
    assert machine.page() == {}


def test_a_process_with_a_hidden_pid_and_one_that_is_gone_are_left_out(machine: Machine) -> None:
    machine.members = (member(0), member(OTHER_RANK))
    assert machine.page() == {}
    assert machine.collector.processes == ()


def test_the_next_process_of_a_ranks_pid_is_not_the_rank(machine: Machine) -> None:
    assert machine.page()
    machine.proc.run(RANK, start=900)
    assert machine.page() == {}
    machine.members = ()
    assert machine.page() == {}
    machine.members = (member(RANK, attempt=1),)
    assert machine.page(), "unless it reports so itself"


def test_without_a_training_there_is_nothing_and_no_file_is_read(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.members = ()
    for module in (process_tree, rank_usage):
        monkeypatch.setattr(module, "read", pytest.fail)
    assert machine.page() == {}


@pytest.mark.parametrize(
    ("file", "families"),
    [
        ("io", {"read_bytes", "written_bytes", "read_chars", "written_chars"}),
        ("schedstat", {"cpu_wait_seconds"}),
        ("limits", {"max_fds"}),
    ],
)
def test_values_that_the_kernel_lacks_are_absent(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, file: str, families: set[str]
) -> None:
    machine.proc.run(FIRST_WORKER, RANK, comm=WORKER)
    machine.page()
    whole = machine.page().keys()
    refuse(monkeypatch, lambda path: path.endswith(f"/{file}"), PermissionError)
    machine.collector = machine.collects()
    machine.page()
    missing = {f'process_{name}{"" if name == "max_fds" else "_total"}{{pid="{RANK}"}}' for name in families}
    missing |= {f"dataloader_read_bytes_total{LOADER}"} if file == "io" else set()
    assert whole - machine.page().keys() == missing


def test_without_the_boots_time_no_process_has_a_start(machine: Machine) -> None:
    (machine.proc.place / "stat").write_text("cpu  0\n")
    machine.collector = machine.collects()
    assert f'process_start_time_seconds{{pid="{RANK}"}}' not in machine.page()
    assert machine.collector.processes[0].started is None


@pytest.mark.parametrize("error", [FileNotFoundError, ProcessLookupError])
def test_a_process_may_vanish_while_any_of_its_files_is_read(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, error: type[OSError]
) -> None:
    machine.members = (member(RANK), member(OTHER_RANK, 1))
    machine.proc.run(OTHER_RANK)
    machine.proc.run(FIRST_WORKER, RANK, comm=WORKER)
    machine.proc.run(SECOND_WORKER, OTHER_RANK, comm=WORKER)
    machine.page()
    files: list[str] = []
    refuse(monkeypatch, lambda path: files.append(path) or False, error)  # type: ignore[func-returns-value]
    others = {
        key: value
        for key, value in machine.page(LATER_SECONDS).items()
        if f'"{OTHER_RANK}"' in key or 'rank="1"' in key
    }
    its = {file for file in files if f"/{RANK}/" in file or f"/{FIRST_WORKER}/" in file}
    assert len(its) == 10
    for gone in its:
        with monkeypatch.context() as patch:
            machine.collector = machine.collects()
            machine.page()
            refuse(patch, gone.__eq__, error)
            page = machine.page(LATER_SECONDS)
        assert {key: value for key, value in page.items() if f'"{OTHER_RANK}"' in key or 'rank="1"' in key} == others


def refuse(monkeypatch: pytest.MonkeyPatch, which: Callable[[str], bool], error: type[OSError]) -> None:
    """Make reading of some files fail from now on."""
    for module in (process_tree, rank_usage):

        def read(path: str, before: Callable[[str], bytes] = module.read) -> bytes:
            if which(path):
                raise error(path)
            return before(path)

        monkeypatch.setattr(module, "read", read)


def test_many_open_files_are_counted_now_and_then_where_they_must_be_listed(machine: Machine) -> None:
    fds, directory = f'process_open_fds{{pid="{RANK}"}}', machine.proc.place / str(RANK) / "fd"
    assert machine.page()[fds] == 3
    for number in range(3, 1001):
        (directory / str(number)).touch()
    assert machine.page()[fds] == 1001
    (directory / "1001").touch()
    assert machine.page(LATER_SECONDS - 1)[fds] == 1001
    assert machine.page(1)[fds] == 1002


def test_the_limit_of_open_files_is_read_now_and_then_and_none_is_none(machine: Machine) -> None:
    limit = f'process_max_fds{{pid="{RANK}"}}'
    assert machine.page()[limit] == 1024
    machine.proc.run(RANK, files="unlimited")
    assert machine.page(LATER_SECONDS - 1)[limit] == 1024
    assert limit not in machine.page(1)


@pytest.mark.parametrize(("state", "shown"), [("t", "T"), ("I", "S"), ("R", "R"), ("Z", "Z")])
def test_each_state_of_the_kernels_is_one_of_five(machine: Machine, state: str, shown: str) -> None:
    machine.proc.run(RANK, state=state)
    page = machine.page()
    assert [one for one in "RSDZT" if page[f'process_state{{pid="{RANK}",state="{one}"}}']] == [shown]


ROLLUP = """00400000-7fff00000000 ---p 00000000 00:00 0                              [rollup]
Rss:                2000 kB
Pss:                1500 kB
Pss_Anon:           1000 kB
Shared_Clean:        600 kB
Private_Clean:       100 kB
Private_Dirty:      1200 kB
Private_Hugetlb:       8 kB
"""


def test_a_reading_with_a_lock_happens_on_request_once_a_minute_and_not_in_the_tick(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    unique, proportional = (f'process_{kind}_memory_bytes{{pid="{RANK}"}}' for kind in ("unique", "proportional"))
    rollup = machine.proc.place / str(RANK) / "smaps_rollup"
    rollup.write_text(ROLLUP)
    monkeypatch.setattr(smaps, "read", lambda _: pytest.fail("nobody asked"))
    assert unique not in machine.page()
    monkeypatch.undo()
    machine.collector = machine.collects(smaps=True)
    assert unique not in machine.page()
    eventually(lambda: unique in machine.page(0.0))
    page = machine.page()
    assert (page[unique], page[proportional]) == (1308 * 1024, 1500 * 1024)
    rollup.unlink()
    assert machine.page(smaps.SECONDS - 2)[unique] == 1308 * 1024
    machine.page()
    eventually(lambda: unique not in machine.page(0.0))


def test_the_real_memory_of_this_process_to_itself_is_within_what_it_has(machine: Machine) -> None:
    found = ProcessCollector(lambda: (member(os.getpid()),), smaps=True)
    page: dict[str, Any] = {}

    def is_read() -> bool:
        page.update((one.metric.name, one.value) for one in found.collect())
        return "trackside_process_unique_memory_bytes" in page

    eventually(is_read)
    unique = page["trackside_process_unique_memory_bytes"]
    assert isinstance(unique, int)
    assert 0 < unique <= page["trackside_process_proportional_memory_bytes"]
    assert page["trackside_process_open_fds"] >= 3
