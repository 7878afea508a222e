"""Assignment of ranks to GPUs, from readings, ranks and process files as plain objects."""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from processes import eventually

from trackside_daemon.collectors.process.ranks import GENERATIONS, OTHERS, RanksCollector
from trackside_daemon.model.rank_process import RankProcess
from trackside_daemon.nvml.reading import DOWN, GpuReading

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trackside_daemon.collectors.base import Collector
    from trackside_daemon.nvml.reading import Value

FIRST, SECOND = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-89a0c0de-d72c-4106-c12f-20bd9faed9f6"
MIG = "MIG-5c3a1b2d-0000-1111-2222-333344445555"
UID = os.getuid()
NOWHERE = ("", "", "", "", "")
"""Pod, namespace, container, its id and cgroup of a process of which none is known."""
USER = pwd.getpwuid(UID).pw_name


class Machine:
    """Two GPUs, processes, and the ranks among them.

    Attributes:
        gpus: The last reading of the GPUs.
        members: The ranks.
    """

    def __init__(self, proc: Path) -> None:
        self.proc = proc
        self.gpus = [gpu(0, FIRST), gpu(1, SECOND)]
        self.members: tuple[RankProcess, ...] = ()
        self.collector = self.collects()
        (proc / "self").mkdir()

    def collects(self, *, host_pids: bool = True, **more: Any) -> RanksCollector:
        """Return a collector that has not read anything yet."""
        more = {**more, "proc": self.proc, "host_pids": lambda _: host_pids}
        return RanksCollector(lambda: self.gpus, lambda: self.members, **more)

    def run(
        self, pid: int, parent: int = 1, *, comm: str = "python3", inner: int = 0, cgroup: str = "", began: int = 99
    ) -> None:
        """Add or replace a process, with the pid *inner* in a namespace of its own if that is given."""
        place = self.proc / str(pid)
        place.mkdir(exist_ok=True)
        pids = f"{pid}\t{inner}" if inner else str(pid)
        text = f"Name:\t{comm}\nPid:\t{pid}\nPPid:\t{parent}\nUid:\t{UID}\t{UID}\t{UID}\t{UID}\nNSpid:\t{pids}\n"
        (place / "status").write_text(text)
        (place / "cgroup").write_text(cgroup)
        (place / "stat").write_text(f"{pid} ({comm}) S {parent} {'0 ' * 17}{began} 0")

    def train(self, pid: int, *gpus: str, rank: int = 0, **more: Any) -> None:
        """Register a process as a rank that reports these GPUs."""
        one = RankProcess("char-model", "id-7", 0, rank, rank, "815", pid, gpus)
        self.members = (*self.members, one._replace(**more))

    def use(self, first: Sequence[int] = (), second: Sequence[int] = ()) -> None:
        """Set the processes that NVML lists on the GPUs."""
        self.gpus = [gpu(0, FIRST, *first), gpu(1, SECOND, *second)]

    def labels_of(self, family: str) -> list[tuple[str, ...]]:
        """Return the labels of the samples of a family."""
        return [one.labels for one in self.collector.collect() if one.metric.name == family]

    def ranks(self) -> list[tuple[str, ...]]:
        """Return GPU and rank of each rank that trains on one."""
        return [(labels[0], labels[3]) for labels in self.labels_of("trackside_gpu_rank_info")]

    def processes(self) -> list[tuple[str, ...]]:
        """Return pid, role and rank of each process."""
        return [(one[0], one[1], one[6]) for one in self.labels_of("trackside_process_info")]


def gpu(index: int, uuid: str, *pids: int, name: str = "NVIDIA H100", migs: Sequence[str] = ()) -> GpuReading:
    values: list[Value] = [("up", (), 1.0), ("processes", (), len(pids))]
    values += [("process_memory_bytes", (str(pid),), 2.0**30) for pid in pids]
    values += [("mig_info", (mig, "1", "0", "1g.10gb"), 1.0) for mig in migs]
    return GpuReading(index, uuid, {"name": name, "source": "nvml"}, values)


def lost(index: int, uuid: str) -> GpuReading:
    return GpuReading(index, uuid, {"name": "NVIDIA H100", "source": "nvml"}, DOWN)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_rank_is_where_nvml_lists_its_process_whatever_it_reports_itself(machine: Machine) -> None:
    machine.run(50)
    machine.train(50, "0")
    machine.use(second=[50])
    assert machine.labels_of("trackside_gpu_rank_info") == [("1", SECOND, "char-model", "0")]


def test_a_rank_is_where_a_process_trains_that_it_has_started(machine: Machine) -> None:
    machine.run(50)
    machine.run(60, parent=50)
    machine.run(70, parent=60)
    machine.train(50)
    machine.use(second=[70])
    assert machine.ranks() == [("1", "0")]


def test_a_process_of_unknown_memory_is_found_by_its_use(machine: Machine) -> None:
    machine.run(50)
    machine.train(50)
    machine.gpus[1].values.append(("process_sm_utilization_ratio", ("50",), 0.9))
    assert machine.ranks() == [("1", "0")]


def test_a_launcher_above_the_ranks_gives_none_of_them_the_gpus_of_another(machine: Machine) -> None:
    machine.run(40)
    for rank in (0, 1):
        machine.run(50 + rank, parent=40)
        machine.train(50 + rank, rank=rank)
    machine.use(first=[51], second=[50])
    assert machine.ranks() == [("1", "0"), ("0", "1")]


def test_a_process_of_too_distant_or_circular_descent_belongs_to_no_rank(machine: Machine) -> None:
    machine.run(50)
    machine.train(50)
    for depth in range(GENERATIONS):
        machine.run(51 + depth, parent=50 + depth)
    machine.run(90, parent=91)
    machine.run(91, parent=90)
    machine.use(first=[50 + GENERATIONS], second=[90])
    assert machine.ranks() == []


def test_a_rank_on_two_gpus_and_two_ranks_on_one_are_all_reported(machine: Machine) -> None:
    for rank in (0, 1):
        machine.run(50 + rank)
        machine.train(50 + rank, rank=rank)
    machine.use(first=[50, 51], second=[51])
    assert machine.ranks() == [("0", "0"), ("0", "1"), ("1", "1")]


@pytest.mark.parametrize(
    ("claim", "found"),
    [
        (FIRST, ["0"]),
        ("GPU-8932", ["0"]),
        ("GPU-89A0", ["1"]),
        ("GPU-89", []),
        ("GPU-", []),
        ("GPU-ffff", []),
        (MIG, ["1"]),
        ("MIG-5c3a", ["1"]),
        (f"GPU-{MIG.removeprefix('MIG-')}", ["1"]),
        (f"MIG-{FIRST}/1/0", ["0"]),
        ("MIG-ffff", []),
        ("nonsense", []),
    ],
)
def test_before_nvml_lists_it_a_rank_is_where_its_uuid_points(machine: Machine, claim: str, found: list[str]) -> None:
    machine.gpus = [gpu(0, FIRST), gpu(1, SECOND, migs=[MIG])]
    machine.train(0, claim)
    assert [index for index, _ in machine.ranks()] == found


@pytest.mark.parametrize(
    ("claims", "names", "found"),
    [
        (["1"], ["H100", "H100"], ["1"]),
        (["0", "1"], ["H100", "H100"], ["0", "1"]),
        (["2"], ["H100", "H100"], []),
        (["1"], ["H100", "L4"], []),
        (["PCI-1"], ["H100", "L4"], ["1"]),
        (["1"], ["H100", ""], ["1"]),
    ],
    ids=["alike", "two", "too far", "CUDA may count otherwise", "by the bus", "one was lost from the start"],
)
def test_an_index_is_understood_where_cuda_counts_as_nvml_does(
    machine: Machine, claims: list[str], names: list[str], found: list[str]
) -> None:
    machine.gpus = [gpu(0, FIRST, name=names[0]), gpu(1, SECOND, name=names[1])]
    machine.run(50)
    machine.train(50, *claims)
    assert [index for index, _ in machine.ranks()] == found


def test_an_index_means_nothing_beside_mig_devices_which_cuda_counts_too(machine: Machine) -> None:
    machine.gpus = [gpu(0, FIRST), gpu(1, SECOND, migs=[MIG])]
    machine.run(50)
    machine.train(50, "PCI-0")
    assert machine.ranks() == []


@pytest.mark.parametrize(
    ("inner", "ours", "theirs", "found"),
    [
        (0, "0::/system.slice", "0::/user.slice/session-1.scope", 1),
        (7, "", "", 0),
        (0, "0::/system.slice", "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0", 0),
        (0, "4:devices:/slurm/uid_9/job_7/step_1", "4:devices:/slurm/uid_9/job_7/step_0", 1),
        (0, "4:devices:/slurm/uid_9/job_8/step_1", "4:devices:/slurm/uid_9/job_7/step_0", 0),
    ],
    ids=["a service beside it", "in a container", "in a Slurm job", "in the same job", "in another job"],
)
def test_an_index_of_a_process_that_may_see_other_gpus_is_not_believed(
    machine: Machine, inner: int, ours: str, theirs: str, found: int
) -> None:
    (machine.proc / "self/cgroup").write_text(ours)
    machine.run(50, inner=inner, cgroup=theirs)
    machine.train(50, "0")
    assert len(machine.ranks()) == found


def test_an_index_of_a_process_in_another_pid_namespace_is_not_believed(machine: Machine) -> None:
    machine.train(0, "0")
    assert machine.ranks() == []


def test_a_rank_stays_on_its_gpu_while_that_is_lost_and_goes_with_its_process(machine: Machine) -> None:
    machine.run(50)
    machine.train(50)
    machine.use(second=[50])
    assert machine.ranks() == [("1", "0")]
    machine.gpus[1] = lost(1, SECOND)
    assert machine.ranks() == [("1", "0")]
    machine.members = ()
    assert machine.ranks() == []
    machine.train(50)
    assert machine.ranks() == []


def test_a_rank_on_two_gpus_stays_on_the_one_that_is_lost(machine: Machine) -> None:
    machine.run(50)
    machine.train(50)
    machine.use(first=[50], second=[50])
    assert machine.ranks() == [("0", "0"), ("1", "0")]
    machine.gpus[1] = lost(1, SECOND)
    assert machine.ranks() == [("0", "0"), ("1", "0")]
    machine.use(first=[50])
    assert machine.ranks() == [("0", "0")]


def test_a_rank_stays_on_a_gpu_that_no_longer_lists_its_processes(machine: Machine) -> None:
    machine.run(50)
    machine.train(50)
    machine.use(second=[50])
    assert machine.ranks() == [("1", "0")]
    machine.gpus[1].values[:] = [("up", (), 1.0)]
    assert machine.ranks() == [("1", "0")]


def test_where_pids_are_not_the_hosts_a_rank_is_where_it_reports_and_listed_alone(machine: Machine) -> None:
    machine.collector = machine.collects(host_pids=False)
    machine.run(50)
    machine.run(60)
    machine.train(50, FIRST)
    machine.use(second=[50, 60])
    assert machine.ranks() == [("0", "0")]
    assert machine.processes() == [("50", "rank", "0")]


def test_the_first_process_of_a_container_is_a_rank_with_those_that_it_has_started(machine: Machine) -> None:
    machine.run(1, parent=0)
    machine.run(60)
    machine.train(1)
    machine.use(second=[60])
    assert machine.ranks() == [("1", "0")]


def test_a_rank_that_has_moved_is_where_it_is_now(machine: Machine) -> None:
    machine.run(50)
    machine.train(50)
    machine.use(first=[50])
    assert machine.ranks() == [("0", "0")]
    machine.use(second=[50])
    assert machine.ranks() == [("1", "0")]


def test_a_simulated_gpu_belongs_to_the_local_rank_and_its_processes_are_not_real(machine: Machine) -> None:
    machine.gpus = [gpu(0, FIRST, 60), gpu(1, SECOND)]
    for one in machine.gpus:
        one.info["source"] = "simulated"
    machine.run(60)
    machine.train(0, rank=1)
    assert machine.ranks() == [("1", "1")]
    assert machine.processes() == []
    machine.members = ()
    machine.train(0, "GPU-8932", rank=1)
    assert machine.ranks() == [("0", "1")]


def test_a_real_gpu_is_given_to_no_rank_that_does_not_report_it(machine: Machine) -> None:
    machine.run(50)
    machine.train(50)
    assert machine.ranks() == []


def test_each_rank_has_a_process_info_with_its_run_and_its_user(machine: Machine) -> None:
    machine.run(50)
    machine.train(50, rank=3, local_rank=1)
    expected = ("50", "rank", "python3", USER, "char-model", "id-7", "3", "1", "815", *NOWHERE)
    eventually(lambda: machine.labels_of("trackside_process_info") == [expected])


def test_a_process_that_a_rank_has_started_bears_its_rank_and_another_ones_only_its_name(machine: Machine) -> None:
    machine.run(50)
    machine.run(60, parent=50)
    machine.run(70, comm="vllm")
    machine.train(50)
    machine.use(first=[60, 70, 80])
    assert machine.processes() == [("50", "rank", "0"), ("60", "other", "0"), ("70", "other", "")]
    expected = ("70", "other", "vllm", USER, "", "", "", "", "", *NOWHERE)
    eventually(lambda: machine.labels_of("trackside_process_info")[-1] == expected)


def test_a_process_reports_where_it_runs_and_children_of_a_rank_are_in_its_pod(machine: Machine) -> None:
    container = "0::/kubepods/pod1/" + "ab" * 32
    machine.run(50, cgroup=container)
    machine.run(60, parent=50, cgroup=f"{container}/workers")
    machine.run(70, cgroup="0::/user.slice")
    machine.train(50, k8s_pod="train-0", k8s_namespace="ml", k8s_container="main")
    machine.use(first=[60, 70])
    pod, path = ("train-0", "ml", "main"), container.removeprefix("0::")
    assert [one[9:] for one in machine.labels_of("trackside_process_info")] == [
        (*pod, "abababababab", path),
        (*pod, "abababababab", f"{path}/workers"),
        ("", "", "", "", "/user.slice"),
    ]


def test_the_job_is_the_one_that_a_rank_reports_or_else_slurms(machine: Machine) -> None:
    machine.run(50, cgroup="0::/system.slice/slurmstepd.scope/job_7/step_0")
    machine.run(51, cgroup="0::/system.slice/slurmstepd.scope/job_8/step_0")
    machine.run(70, cgroup="4:memory:/slurm/uid_9/job_9/step_0")
    machine.train(50)
    machine.train(51, rank=1, job_id="")
    machine.use(first=[70])
    assert [one[8] for one in machine.labels_of("trackside_process_info")] == ["815", "8", "9"]


def test_a_worker_of_a_data_loader_is_one_only_below_a_rank_and_not_below_another_worker(machine: Machine) -> None:
    machine.run(50, comm="pt_data_worker")
    machine.run(60, parent=50, comm="pt_data_worker")
    machine.run(61, parent=60, comm="pt_data_worker")
    machine.run(70, comm="pt_data_worker")
    machine.train(50)
    machine.use(first=[60, 61, 70])
    assert machine.processes() == [
        *(("50", "rank", "0"), ("60", "dataloader", "0"), ("61", "other", "0")),
        ("70", "other", ""),
    ]


def test_other_processes_are_left_out_when_that_is_asked_for(machine: Machine) -> None:
    machine.collector = machine.collects(others=False)
    machine.run(50)
    machine.run(60, parent=50)
    machine.run(70)
    machine.train(50)
    machine.use(first=[60, 70])
    assert machine.processes() == [("50", "rank", "0"), ("60", "other", "0")]


def test_a_process_that_renames_itself_retains_the_name_that_it_was_seen_with(machine: Machine) -> None:
    machine.use(first=[70])
    for name in ("vllm", "vllm: step 1", ") S 1 ("):
        machine.run(70, comm=name)
        assert machine.labels_of("trackside_process_info")[0][2] == "vllm"
    machine.run(70, comm="another", began=100)
    assert machine.labels_of("trackside_process_info")[0][2] == "another"


def test_a_process_with_two_runs_has_one_info_of_the_oldest_and_both_are_on_its_gpu(machine: Machine) -> None:
    machine.run(50)
    machine.train(50)
    machine.train(50, run="second", run_id="id-8", rank=1)
    machine.use(first=[50])
    assert machine.processes() == [("50", "rank", "0")]
    assert machine.ranks() == [("0", "0"), ("0", "1")]


def test_a_rank_with_a_hidden_process_has_no_name_and_no_user(machine: Machine) -> None:
    machine.train(50)
    expected = ("50", "rank", "", "", "char-model", "id-7", "0", "0", "815", *NOWHERE)
    assert machine.labels_of("trackside_process_info") == [expected]


def test_a_crowd_on_a_gpu_is_cut_and_the_ranks_are_not(machine: Machine) -> None:
    crowd = range(1000, 1000 + OTHERS + 9)
    for pid in crowd:
        machine.run(pid)
    machine.run(50)
    machine.train(50)
    machine.use(first=[*crowd, 50])
    assert len(machine.processes()) == OTHERS + 1
    assert ("50", "rank", "0") in machine.processes()


def test_children_of_ranks_come_before_a_crowd_and_its_cut_is_logged_once(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    crowd = range(1000, 1000 + OTHERS)
    for pid in crowd:
        machine.run(pid)
    machine.run(50)
    machine.run(2000, parent=50)
    machine.train(50)
    machine.use(first=crowd)
    assert len(machine.processes()) == OTHERS + 1
    assert not caplog.records
    machine.use(first=crowd, second=[2000])
    for _ in range(2):
        assert ("2000", "other", "0") in machine.processes()
    [answered] = [record.getMessage() for record in caplog.records]
    assert answered.startswith(
        f"{OTHERS + 1} processes other than ranks are on the GPUs, and trackside_process_info shows"
    )


@pytest.mark.parametrize("text", ["", "Name:\tx\n", "Name:\tx\nPPid:\tone\nUid:\t0\n", "\xff\xfe"])
def test_a_status_that_cannot_be_read_is_no_process(machine: Machine, text: str) -> None:
    machine.run(70)
    (machine.proc / "70/status").write_text(text, encoding="latin-1")
    machine.use(first=[70])
    assert machine.processes() == []


def test_a_user_without_a_name_is_shown_by_number(machine: Machine) -> None:
    machine.run(70)
    status = machine.proc / "70/status"
    status.write_text(status.read_text().replace(f"Uid:\t{UID}", "Uid:\t4242424242"))
    machine.use(first=[70])
    assert machine.labels_of("trackside_process_info")[0][3] == "4242424242"


def test_without_gpus_and_trainings_there_is_nothing_and_that_is_no_failure(machine: Machine) -> None:
    assert machine.collector.collect() == []
    machine.gpus = []
    assert machine.collector.collect() == []
    machine.train(50, "0")
    assert [one.metric.name for one in machine.collector.collect()] == ["trackside_process_info"]


def test_it_meets_the_contract_of_a_collector(machine: Machine) -> None:
    kept: Collector = machine.collector
    assert kept.name == "ranks"
    machine.run(50)
    machine.train(50, "0", peak_flops=1e15)
    samples = kept.collect()
    families = {"trackside_gpu_rank_info", "trackside_training_peak_flops_per_second", "trackside_process_info"}
    assert {one.metric.name for one in samples} == families
    assert all(len(one.labels) == len(one.metric.labels) for one in samples)


def peaks(machine: Machine) -> dict[str, float]:
    """Return FLOP/s by rank."""
    reported = [
        one for one in machine.collector.collect() if one.metric.name == "trackside_training_peak_flops_per_second"
    ]
    return {one.labels[1]: one.value for one in reported if isinstance(one.value, float)}


def test_the_peak_of_a_rank_is_that_of_its_gpus_together(machine: Machine) -> None:
    machine.gpus = [gpu(0, FIRST, name="NVIDIA A40"), gpu(1, SECOND, name="NVIDIA A100 80GB PCIe")]
    machine.train(0, FIRST, SECOND, rank=0)
    assert peaks(machine) == {"0": pytest.approx(461.7e12)}
    machine.train(0, FIRST, rank=1)
    assert peaks(machine) == {"0": pytest.approx((149.7 / 2 + 312) * 1e12), "1": pytest.approx(149.7e12 / 2)}


def test_a_rank_that_uses_no_gpu_has_no_peak(machine: Machine) -> None:
    machine.gpus = [gpu(0, FIRST, 60, name="NVIDIA A40"), gpu(1, SECOND, name="NVIDIA A40")]
    machine.run(50)
    machine.run(60)
    machine.train(50, FIRST)
    machine.train(60, FIRST, rank=1)
    assert machine.ranks() == [("0", "0"), ("0", "1")]
    assert peaks(machine) == {"1": pytest.approx(149.7e12)}, "it has the GPU to itself"
    machine.collector = machine.collects(host_pids=False)
    assert peaks(machine) == dict.fromkeys("01", pytest.approx(149.7e12 / 2)), "what NVML lists means nothing here"
    simulated = {"name": "NVIDIA A40", "source": "simulated"}
    machine.gpus = [msgspec.structs.replace(one, info=simulated) for one in machine.gpus]
    assert peaks(machine) == {}


def test_an_unknown_peak_is_reported_by_nothing_but_the_run_itself(machine: Machine) -> None:
    machine.gpus = [gpu(0, FIRST, name="NVIDIA A40"), gpu(1, SECOND, name="NVIDIA A40", migs=[MIG])]
    machine.train(0, FIRST, SECOND, rank=0)
    machine.train(0, MIG, rank=1)
    machine.train(0, MIG, rank=2, peak_flops=5e12)
    machine.train(0, rank=3, peak_flops=7e12)
    machine.train(0, rank=4)
    assert peaks(machine) == {"2": 5e12, "3": 7e12}
    machine.gpus = [gpu(0, FIRST, name="NVIDIA A40"), gpu(1, SECOND, name="NVIDIA Unheard-of")]
    assert peaks(machine) == {"2": 5e12, "3": 7e12}
