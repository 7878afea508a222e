"""Memory leaks: one alert per run, which names the first rank, and its end."""

from __future__ import annotations

import random
import re

from alerts.ticking import EPOCH, sample

from trackside_daemon.alerts.process_memory_leaks import FORGET_SECONDS, ProcessLeaks, RankLabels, Rows, _rooms
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import Alert, RunState
from trackside_daemon.model.state import State

GIB = 2.0**30
MIB = 2.0**20


class Node:
    """Ranks with the memory that a test sets.

    Args:
        every: Seconds between two ticks.
        room: Available memory, in bytes.
        most: Ranks that are followed at once.

    Attributes:
        process: What begins the pid of each rank.
        run_id: Id of the run.
    """

    def __init__(self, every: float = 10.0, room: float = 100 * GIB, most: int = 1024) -> None:
        self.every, self.room = every, room
        self.process, self.run_id = "", "id"
        self.now = 1000.0
        self.state = State()
        self.leaks = ProcessLeaks(self.state, clock=lambda: self.now, wall=lambda: EPOCH + self.now, most=most)
        self.noise = random.Random(1)

    def run(self, hours: float, **growing: float) -> list[tuple[str, bool, str]]:
        """Return the findings of some hours, with growth in bytes per hour by ``kind_rank``; memory with 0 is constant."""
        begun, reported = self.now, []
        while self.now < begun + 3600 * hours:
            since = (self.now - begun) / 3600
            samples = [sample("trackside_host_memory_available_bytes", self.room)]
            for name, rate in growing.items():
                what, rank = name.split("_")
                held = 4 * GIB + rate * since + self.noise.uniform(0, 100 * MIB)
                series = {
                    "own": f"trackside_process_anonymous_memory_bytes{{pid={self.process}{rank}}}",
                    "worker": f"trackside_dataloader_anonymous_memory_bytes{{run=r,rank={rank}}}",
                    "file": f"trackside_process_file_memory_bytes{{pid={self.process}{rank}}}",
                    "gpu": f"trackside_gpu_process_memory_bytes{{gpu=3,uuid=G,pid={self.process}{rank}}}",
                }[what]
                samples += [
                    sample(series, held),
                    sample(
                        f"trackside_process_info{{pid={self.process}{rank},role=rank,run=r,run_id={self.run_id},rank={rank}}}",
                        1.0,
                    ),
                    sample(f"trackside_training_step{{run=r,rank={rank}}}", float(int(self.now))),
                ]
            self.state.update(Batch("test", samples, complete=True))
            reported += [(one.alert, one.over, one.summary) for one in self.leaks.accept(Batch("sampler"))]
            self.now += self.every
        return reported


def test_steady_memory_is_quiet() -> None:
    assert Node().run(4, own_0=0.0, own_1=0.0, worker_0=0.0, gpu_0=0.0) == []


def test_ranks_that_leak_together_are_one_alert_that_names_the_first() -> None:
    node = Node()
    ((alert, over, summary),) = node.run(2, **{f"own_{rank}": 3 * GIB for rank in range(8)})
    assert (alert, over) == ("HostMemoryLeak", False)
    assert summary.startswith("rank 0 of r: memory has grown steadily since step")
    assert "GiB an hour" in summary
    assert "until no memory is left" in summary


def test_workers_count_as_their_rank() -> None:
    assert [reported[:2] for reported in Node().run(2, own_0=0.0, worker_0=3 * GIB)] == [("HostMemoryLeak", False)]


def test_mapped_files_do_not_count() -> None:
    assert Node().run(2, own_0=0.0, file_0=20 * GIB) == []


def test_a_process_on_a_gpu() -> None:
    ((alert, _, summary),) = Node().run(2, own_0=0.0, gpu_0=2 * GIB)
    assert alert == "GpuMemoryLeak"
    assert summary.startswith("rank 0 of r on GPU 3: ")


def test_a_leak_ends_when_the_ranks_are_gone_and_they_make_room_for_others() -> None:
    node = Node(most=2)
    node.run(2, own_0=2 * GIB, own_1=2 * GIB)
    assert [reported[:2] for reported in node.run(FORGET_SECONDS / 3600 + 0.1)] == [("HostMemoryLeak", True)]
    node.process = "2"
    assert [reported[:2] for reported in node.run(2, own_0=2 * GIB)] == [("HostMemoryLeak", False)]


def test_a_restored_leak_continues_and_is_not_reported_again() -> None:
    node = Node()
    node.leaks.restore(Alert("HostMemoryLeak", "warning", EPOCH, run="id", labels={"run": "r"}, summary="as it was"))
    assert node.run(2, own_0=2 * GIB) == [("HostMemoryLeak", False, "as it was")]


def test_a_restored_leak_that_is_not_confirmed_ends() -> None:
    node = Node()
    node.leaks.restore(Alert("HostMemoryLeak", "warning", EPOCH, run="id", labels={"run": "r"}, summary="as it was"))
    assert [over for _, over, _ in node.run(2, own_0=0.0)] == [False, True]


def test_a_leak_that_takes_a_gibibyte_in_minutes_is_reported_in_minutes() -> None:
    assert [one[:2] for one in Node(every=1.0).run(310 / 3600, own_0=1.3 * 12 * GIB)] == [("HostMemoryLeak", False)]
    soon = Node(every=1.0, room=8 * GIB).run(110 / 3600, own_0=2 * 12 * GIB)
    assert [one[:2] for one in soon] == [("HostMemoryLeak", False)]


def test_a_leak_of_the_next_run_of_a_name_ends_the_alert_about_the_run_before() -> None:
    node = Node(every=1.0, room=8 * GIB)
    assert [one[:2] for one in node.run(110 / 3600, own_0=2 * 12 * GIB)] == [("HostMemoryLeak", False)]
    node.process, node.run_id = "2", "next"
    again = node.run((FORGET_SECONDS + 60) / 3600, own_0=2 * 12 * GIB)
    assert [one[:2] for one in again] == [("HostMemoryLeak", True), ("HostMemoryLeak", False)]


def test_a_process_that_starts_again_is_compared_with_itself() -> None:
    """The memory of the process before would hide the leak of the new one."""
    node = Node()
    assert [one[:2] for one in node.run(2, own_0=2 * GIB)] == [("HostMemoryLeak", False)]
    node.process = "7"
    assert [one[:2] for one in node.run(0.4, own_0=0.0)] == [("HostMemoryLeak", True)]
    assert [one[:2] for one in node.run(2, own_0=2 * GIB)] == [("HostMemoryLeak", False)]


def test_the_free_memory_is_what_the_machine_and_the_cgroup_s_limit_leave_each_rank() -> None:
    ranks = [RankLabels("r", "id", rank, "/job") for rank in "01"]
    limit: Rows = {("/job",): 20 * GIB}
    used: Rows = {("/job",): 12 * GIB}
    assert _rooms(ranks, 100 * GIB, limit, used) == {"/job": 4 * GIB}
    assert _rooms(ranks, 6 * GIB, limit, used) == {"/job": 3 * GIB}
    assert _rooms(ranks, 100 * GIB, {}, {}) == {"/job": 50 * GIB}


def test_the_time_left_is_that_of_the_memory_that_is_free_now() -> None:
    node = Node(room=100 * GIB)
    assert node.run(0.2, own_0=2 * GIB) == []
    node.room = 2 * GIB
    ((_, _, summary),) = node.run(2, own_0=2 * GIB)
    assert re.search(r"GiB an hour: \d+ min.* until no memory is left$", summary), summary


def test_a_leak_of_a_run_that_has_ended_is_over_at_once_also_a_restored_one() -> None:
    node, ended = Node(), Batch("training", records=[RunState("id", 0, "lost", "", EPOCH)])
    node.run(2, own_0=2 * GIB)
    # That of one rank, or of an attempt before, may be read late from a spool.
    assert node.leaks.accept(Batch("training", records=[RunState("id", 0, "failed", "", EPOCH, late=True)])) == []
    assert [(one.alert, one.over) for one in node.leaks.accept(ended)] == [("HostMemoryLeak", True)]
    node.leaks.restore(Alert("HostMemoryLeak", "warning", EPOCH, run="id", labels={"run": "r"}))
    assert [over for _, over, _ in node.run(0.01)] == [False]
    assert [one.over for one in node.leaks.accept(ended)] == [True]
