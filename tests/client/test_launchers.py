"""Ranks that form one run: the environments that launchers set, and the launchers themselves."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from processes import clean_environ, run

from trackside.environment import identity as identity_module
from trackside.environment.identity import boot_id, identify

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside.wire import Identity

Environ = dict[str, str]
Reported = dict[str, Any]


def environ_of(text: str) -> Environ:
    """Return the variables of a text as `env` prints it."""
    return dict(one.split("=", 1) for one in text.split())


TORCHRUN = environ_of("""
    RANK=5 WORLD_SIZE=16 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 GROUP_WORLD_SIZE=4 MASTER_ADDR=node0 MASTER_PORT=29500
    TORCHELASTIC_RUN_ID=job-17 TORCHELASTIC_RESTART_COUNT=2 TORCHELASTIC_MAX_RESTARTS=3
""")
ONE_NODE = TORCHRUN | environ_of("WORLD_SIZE=4 RANK=1 GROUP_WORLD_SIZE=1 TORCHELASTIC_RUN_ID=none")
SBATCH = environ_of("SLURM_JOB_ID=4711 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=8")
SRUN = SBATCH | environ_of("""
    SLURM_PROCID=6 SLURM_LOCALID=2 SLURM_NODEID=1 SLURM_STEP_ID=3 SLURM_STEP_NUM_TASKS=8
    SLURM_STEP_TASKS_PER_NODE=4(x2) SLURM_RESTART_COUNT=1
""")
TASK_PER_NODE = SRUN | environ_of(
    "SLURM_PROCID=1 SLURM_LOCALID=0 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=1(x4)"
)
SHELL = SRUN | environ_of("SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_PTY_WIN_COL=80 SLURM_PTY_PORT=34567")
#: mpirun of Open MPI 4.1 on two nodes: what it sets for each of two ranks alike, and what differs.
OPEN_MPI = environ_of("""
    OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1
    OMPI_MCA_ess_base_jobid=1607598081 OMPI_MCA_orte_hnp_uri=1607598080.0;tcp://192.0.2.2:37667
    OMPI_MCA_orte_local_daemon_uri=1607598080.1;tcp://192.0.2.2:35035
    OMPI_MCA_orte_precondition_transports=291d297c56dadb82-ca9dae45aa19de0b PMIX_NAMESPACE=1607598081 PMIX_RANK=1
""")
OPEN_MPI_5 = {name: value for name, value in OPEN_MPI.items() if not name.startswith("OMPI_MCA")} | {
    "PMIX_NAMESPACE": "prterun-node0-9456@1"
}
#: mpiexec of MPICH (Hydra); Intel MPI is the same.
MPICH = environ_of("PMI_RANK=1 PMI_SIZE=4 PMI_FD=8 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=4")
DEEPSPEED = environ_of("""
    RANK=9 WORLD_SIZE=16 LOCAL_RANK=1 LOCAL_SIZE=8 CROSS_RANK=1 CROSS_SIZE=2 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500
""")
POD = environ_of("KUBERNETES_SERVICE_HOST=10.96.0.1 HOSTNAME=train-7c9d-x2x4z")
PYTORCHJOB = POD | environ_of(
    "HOSTNAME=llama-worker-0 RANK=1 WORLD_SIZE=2 MASTER_ADDR=llama-master-0 MASTER_PORT=23456"
)
PYTORCHJOB_MASTER = PYTORCHJOB | environ_of("HOSTNAME=llama-master-0 RANK=0 MASTER_ADDR=localhost")
TRAINER = (
    TORCHRUN
    | POD
    | environ_of("""
    HOSTNAME=llama-node-0-1 JOB_COMPLETION_INDEX=1 PET_NNODES=4 PET_NODE_RANK=1 MASTER_ADDR=llama-node-0-0.llama
    MASTER_PORT=29400 TORCHELASTIC_RUN_ID=none
""")
)


def by_launcher(parent: int | None = None) -> str:
    """Return the run id that the children of one process share: this test's parent, or *parent*."""
    parent = os.getppid() if parent is None else parent
    start = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19]
    return f"launch-{boot_id(Path('/proc'))[:8]}-{parent}-{start}"


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without siblings: tests run in several forks."""
    monkeypatch.setattr(identity_module, "children", lambda *_: [])


def derived(environ: Environ) -> str:
    """Return the run id that follows from processes: of torchrun, else of this first and only live rank of its job."""
    return by_launcher(os.getppid() if "TORCHELASTIC_RUN_ID" in environ else os.getpid())


def place(identity: Identity) -> tuple[int, int, int, int]:
    """Return rank, local rank, world and local world."""
    return identity.rank, identity.local_rank, identity.world, identity.local_world


def without(environ: Environ, *names: str) -> Environ:
    return {name: value for name, value in environ.items() if name not in names}


@pytest.mark.parametrize(
    ("environ", "ranks", "run"),
    [
        pytest.param(TORCHRUN, (5, 1, 16, 4), "torchrun-job-17", id="torchrun"),
        pytest.param(ONE_NODE, (1, 1, 4, 4), None, id="torchrun's default id, which all have"),
        pytest.param({**ONE_NODE, "TORCHELASTIC_RUN_ID": ""}, (1, 1, 4, 4), None, id="torchrun with an empty id"),
        pytest.param({**ONE_NODE, "MASTER_ADDR": "127.0.0.1"}, (1, 1, 4, 4), None, id="accelerate launch"),
        pytest.param(
            {**TORCHRUN, "TORCHELASTIC_RUN_ID": "none"}, (5, 1, 16, 4), "launch-node0-29500", id="torchrun, many nodes"
        ),
        pytest.param(
            {**TORCHRUN, "TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "127.0.0.1"},
            (5, 1, 16, 4),
            f"launch-{boot_id(Path('/proc'))[:8]}-29500",
            id="several of torchrun's agents on one machine",
        ),
        pytest.param(DEEPSPEED, (9, 1, 16, 8), "launch-10.0.0.1-29500", id="deepspeed"),
        pytest.param(SRUN, (6, 2, 8, 4), "slurm-4711.3", id="srun"),
        pytest.param({**TASK_PER_NODE, **TORCHRUN}, (5, 1, 16, 4), "slurm-4711.3", id="torchrun in each task of srun"),
        pytest.param(
            {**TASK_PER_NODE, **ONE_NODE, "TORCHELASTIC_RUN_ID": "a-uuid"},
            (1, 1, 4, 4),
            "torchrun-a-uuid",
            id="a training of its own in each task of srun",
        ),
        pytest.param({**SBATCH, **TORCHRUN}, (5, 1, 16, 4), "torchrun-job-17", id="torchrun inside sbatch"),
        pytest.param({**SHELL, **ONE_NODE}, (1, 1, 4, 4), None, id="torchrun in a shell of srun"),
        pytest.param(
            {**SRUN, "RANK": "6", "WORLD_SIZE": "8", "MASTER_ADDR": "node0"}, (6, 2, 8, 4), "slurm-4711.3", id="by hand"
        ),
        pytest.param(OPEN_MPI, (1, 0, 2, 1), "mpi-291d297c56dadb82-ca9dae45aa19de0b", id="Open MPI 4"),
        pytest.param(OPEN_MPI_5, (1, 0, 2, 1), "mpi-prterun-node0-9456@1", id="Open MPI 5"),
        pytest.param(
            # mpirun inside sbatch starts its daemons on the other nodes by srun: only the ranks there see a step.
            {**SRUN, **OPEN_MPI, "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1"},
            (1, 0, 2, 1),
            "mpi-291d297c56dadb82-ca9dae45aa19de0b",
            id="Open MPI inside sbatch",
        ),
        pytest.param(
            {**OPEN_MPI, **TORCHRUN, "WORLD_SIZE": "8"},
            (5, 1, 8, 4),
            "mpi-291d297c56dadb82-ca9dae45aa19de0b",
            id="torchrun on each node by mpirun",
        ),
        pytest.param(
            {**OPEN_MPI, **TORCHRUN}, (5, 1, 16, 4), "torchrun-job-17", id="torchruns side by side under mpirun"
        ),
        pytest.param(MPICH, (1, 1, 4, 4), None, id="MPICH"),
        pytest.param(
            {**MPICH, "PMI_SIZE": "8", "MASTER_ADDR": "node0", "MASTER_PORT": "1234"},
            (1, 1, 8, 4),
            "launch-node0-1234",
            id="MPICH, two nodes",
        ),
        pytest.param({"RANK": "1", "WORLD_SIZE": "2"}, (1, 1, 2, 2), None, id="ranks alone"),
        pytest.param(
            {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node0"}, (1, 0, 2, 1), "launch-node0", id="no port"
        ),
        *(
            pytest.param(
                {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": address, "MASTER_PORT": "29500"},
                (3, 3, 4, 4),
                None,
                id=f"{address} is one machine",
            )
            for address in ("localhost", "127.0.0.1", "127.0.1.1", "::1")
        ),
        pytest.param(PYTORCHJOB, (1, 0, 2, 1), "launch-llama-master-0-23456", id="PyTorchJob"),
        pytest.param(PYTORCHJOB_MASTER, (0, 0, 2, 1), "launch-llama-master-0-23456", id="PyTorchJob's master"),
        pytest.param(TRAINER, (5, 1, 16, 4), "launch-llama-node-0-0.llama-29400", id="Kubeflow Trainer"),
    ],
)
@pytest.mark.usefixtures("alone")
def test_a_launcher_names_place_and_run(environ: Environ, ranks: tuple[int, int, int, int], run: str | None) -> None:
    identity = identify("name", environ=environ)
    assert place(identity) == ranks
    assert identity.run == (run or derived(environ))


@pytest.mark.parametrize(
    "environ",
    [
        pytest.param(SBATCH, id="sbatch"),
        pytest.param(SHELL, id="srun --pty bash"),
        pytest.param({**SHELL, "SLURM_STEP_ID": "4294967290"}, id="salloc"),
        pytest.param(POD, id="pod"),
        pytest.param({**POD, "HOSTNAME": "train-0", "JOB_COMPLETION_INDEX": "0"}, id="pod of an indexed job"),
    ],
)
def test_where_trainings_may_follow_one_another_or_run_side_by_side_each_is_a_run_of_its_own(environ: Environ) -> None:
    first, second = identify(environ=environ), identify(environ=environ)
    assert place(first) == (0, 0, 1, 1)
    assert first.run != second.run
    assert len(first.run) == 12


def test_the_step_of_a_shell_with_more_tasks_than_one_has_ranks() -> None:
    assert identify(environ={**SRUN, "SLURM_PTY_WIN_COL": "80"}).run == "slurm-4711.3"


def test_the_process_that_lightning_has_made_the_others_from_is_their_launcher() -> None:
    started = {"NODE_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "51234"}
    first = identify(environ={**started, "LOCAL_RANK": "0", "PMI_RANK": "0"})
    other = identify(environ={**started, "LOCAL_RANK": "1", "PMI_RANK": "1"})
    assert (first.run, other.run) == (by_launcher(os.getpid()), by_launcher())


SHELL_LOOP = """
job() {{ for r in 0 1; do {start} & done }}
{jobs}
wait
"""
RANK_BY_VARIABLE = "RANK=$r LOCAL_RANK=$r WORLD_SIZE=2 MASTER_PORT=$2 {python} -c {code} $1 $r"
RANK_BY_ARGUMENT = "{python} -c {code} $1 $r"
RANK_CODE = """
import os, sys, time
from pathlib import Path
from trackside.environment.identity import identify
job, rank = sys.argv[1:]
os.environ.update(RANK=rank, WORLD_SIZE="2")
reported = Path(os.environ["REPORTS"], f"{job}.{rank}")
reported.with_suffix(".begun" + rank).touch()
while len(list(reported.parent.glob(f"{job}.begun*"))) < 2:  # a rank knows the others as long as they live
    time.sleep(0.01)
reported.write_text(identify(job).run)
while len(list(reported.parent.glob(f"{job}.?"))) < 2:
    time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("start", "jobs"),
    [
        (RANK_BY_VARIABLE, "job A 1; wait; job B 1"),
        (RANK_BY_ARGUMENT, "job A 1; wait; job B 2"),
        pytest.param(RANK_BY_VARIABLE, "job A 1; job B 2", marks=pytest.mark.only_soak),
        pytest.param(RANK_BY_ARGUMENT, "job A 1; wait; job B 1", marks=pytest.mark.only_soak),
        pytest.param(RANK_BY_VARIABLE, "job A 1; wait; job B 2", marks=pytest.mark.only_soak),
        pytest.param(RANK_BY_ARGUMENT, "job A 1; job B 2", marks=pytest.mark.only_soak),
    ],
)
def test_jobs_that_one_shell_starts_are_runs_of_their_own_and_the_ranks_of_each_are_one(
    tmp_path: Path, start: str, jobs: str
) -> None:
    started = start.format(python=shlex.quote(sys.executable), code=shlex.quote(RANK_CODE))
    script = SHELL_LOOP.format(start=started, jobs=jobs)
    subprocess.run(["bash", "-c", script], env=clean_environ({"REPORTS": str(tmp_path)}), check=True)
    reported = {path.name: path.read_text() for path in tmp_path.glob("*.?")}
    assert reported["A.0"] == reported["A.1"] != reported["B.0"] == reported["B.1"]


def test_a_training_of_one_rank_is_a_run_of_its_own_each_time(tmp_path: Path) -> None:
    code = "from trackside.environment.identity import identify; print(identify().run)"
    script = f"for i in 1 2; do RANK=0 WORLD_SIZE=1 {shlex.quote(sys.executable)} -c {shlex.quote(code)}; done"
    done = subprocess.run(["bash", "-c", script], env=clean_environ(), stdout=subprocess.PIPE, text=True, check=True)
    first, second = done.stdout.split()
    assert first != second


@pytest.mark.parametrize("environ", [TORCHRUN, {"RANK": "0", "WORLD_SIZE": "2"}])
def test_a_second_name_in_one_process_is_another_run_and_the_first_again_is_the_same(environ: Environ) -> None:
    names: dict[str, str] = {}
    one, other, again, unnamed = (identify(name, environ=environ, names=names).run for name in ("a", "b", "a", None))
    assert one == again == unnamed
    assert other.startswith(f"{one}-")
    assert identify("b", environ=environ, names={}).run == one, "nothing but the name differs for the other ranks"
    assert identify("b", "given", environ=environ, names=names).run == "given"


def test_without_proc_a_launcher_is_identified_by_its_pid(tmp_path: Path) -> None:
    assert identify(environ=ONE_NODE, proc=tmp_path).run == f"launch-local-{os.getppid()}-0"


@pytest.mark.parametrize(
    ("counts", "node", "tasks"),
    [
        ("4", "0", 4),
        ("4(x2)", "0", 4),
        ("4(x2)", "1", 4),
        ("4(x2),3", "2", 3),
        ("1,2(x3),5", "3", 2),
        ("1,2(x3),5", "4", 5),
        ("2", "7", 1),
        ("", "0", 1),
        ("many", "0", 1),
        ("4(x2)", "", 4),
    ],
)
def test_the_tasks_of_a_step_on_this_node_are_counted(counts: str, node: str, tasks: int) -> None:
    environ = {**SRUN, "SLURM_STEP_TASKS_PER_NODE": counts, "SLURM_NODEID": node}
    assert identify(environ=environ).local_world == tasks


@pytest.mark.parametrize("value", ["", "first", "-1", "1.5", " 1", "9" * 400])
def test_a_number_that_is_none_is_as_if_it_were_not_there(value: str) -> None:
    environ = dict.fromkeys((*without(TORCHRUN, "TORCHELASTIC_RUN_ID"), *OPEN_MPI, *SRUN), value)
    identity = identify(environ=environ)
    assert place(identity) == (0, 0, 1, 1)
    assert identity.attempt == 0


def test_every_restart_is_an_attempt_of_its_own_and_of_the_same_run() -> None:
    restarts = [
        identify(
            environ={
                **TASK_PER_NODE,
                **TORCHRUN,
                "SLURM_RESTART_COUNT": str(requeued),
                "TORCHELASTIC_RESTART_COUNT": str(restarted),
            }
        )
        for requeued in range(3)
        for restarted in range(4)
    ]
    assert [one.attempt for one in restarts] == list(range(12))
    assert {one.run for one in restarts} == {"slurm-4711.3"}
    assert identify(environ=SRUN).attempt == 1
    assert identify(environ=SBATCH).attempt == 0


@pytest.mark.parametrize(
    ("environ", "job"),
    [
        ({"SLURM_JOB_ID": "4711"}, "4711"),
        ({"PBS_JOBID": "12.pbs01"}, "12.pbs01"),
        ({"LSB_JOBID": "99"}, "99"),
        ({"SLURM_JOB_ID": "", "LSB_JOBID": "99"}, "99"),
        ({**SBATCH, **POD, "JOBSET_NAME": "llama"}, "4711"),
        ({**POD, "HOSTNAME": "llama-3", "JOB_COMPLETION_INDEX": "3"}, "llama"),
        ({**POD, "HOSTNAME": "llama-13", "JOB_COMPLETION_INDEX": "3"}, ""),
        ({**POD, "HOSTNAME": "llama-slice-1-3", "JOB_COMPLETION_INDEX": "3", "JOBSET_NAME": "llama"}, "llama"),
        ({**POD, "HOSTNAME": "llama-0-2", "LWS_LEADER_ADDRESS": "llama-0.llama.default"}, "llama-0"),
        ({**POD, "HOSTNAME": "llama-trainer-2", "VC_TASK_INDEX": "2", "VK_TASK_INDEX": "2"}, "llama-trainer"),
        ({**POD, "HOSTNAME": "llama-worker-2", "VC_TASK_INDEX": "2"}, "llama"),
        (PYTORCHJOB, "llama"),
        (PYTORCHJOB_MASTER, "llama"),
        (TRAINER, "llama"),
        (POD, ""),
        ({"HOSTNAME": "llama-worker-0", "JOBSET_NAME": "x"}, ""),
        ({**POD, "HOSTNAME": ""}, ""),
    ],
)
def test_the_clusters_job_is_found_and_part_of_the_name(
    monkeypatch: pytest.MonkeyPatch, environ: Environ, job: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py"])
    identity = identify(environ=environ)
    assert (identity.job_id, identity.name) == (job, f"train-{job}" if job else "train")


class ProcessGroup:
    """A torch.distributed with a process group of *world* ranks."""

    def __init__(self, rank: int, world: int, *, initialized: bool = True) -> None:
        self.is_available = lambda: True
        self.is_initialized = lambda: initialized
        self.get_rank = lambda: rank
        self.get_world_size = lambda: world


@pytest.mark.parametrize(
    ("environ", "group", "ranks", "run"),
    [
        pytest.param({}, ProcessGroup(3, 4), (3, 3, 4, 4), None, id="mp.spawn"),
        pytest.param(
            {"MASTER_ADDR": "localhost", "MASTER_PORT": "12355"}, ProcessGroup(3, 4), (3, 3, 4, 4), None, id="localhost"
        ),
        pytest.param(
            {"MASTER_ADDR": "node0", "MASTER_PORT": "12355"},
            ProcessGroup(3, 4),
            (3, 0, 4, 1),
            "launch-node0-12355",
            id="mp.spawn on several nodes",
        ),
        pytest.param(
            TASK_PER_NODE, ProcessGroup(9, 32), (9, 0, 32, 8), "slurm-4711.3", id="mp.spawn in each srun task"
        ),
        pytest.param(TORCHRUN, ProcessGroup(1, 4), (5, 1, 16, 4), "torchrun-job-17", id="a group of some ranks"),
        pytest.param(SBATCH, ProcessGroup(1, 2), (1, 1, 2, 2), None, id="mp.spawn inside sbatch"),
        pytest.param(
            {"RANK": "1", "WORLD_SIZE": "2"}, ProcessGroup(0, 9, initialized=False), (1, 1, 2, 2), None, id="not yet"
        ),
    ],
)
@pytest.mark.usefixtures("alone")
def test_a_process_group_names_ranks_where_the_environment_does_not(
    monkeypatch: pytest.MonkeyPatch,
    environ: Environ,
    group: ProcessGroup,
    ranks: tuple[int, int, int, int],
    run: str | None,
) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    identity = identify(environ=environ)
    assert place(identity) == ranks
    assert identity.run == (run or derived(environ))


def test_a_process_group_that_cannot_be_asked_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed", type(sys)("half imported"))
    assert place(identify(environ={})) == (0, 0, 1, 1)


@pytest.fixture
def launched(tmp_path: Path) -> Callable[..., list[Reported]]:
    """A function that runs Python, whose processes each write their identity to a file.

    It returns the identities, sorted by attempt, run and rank.
    """

    def launch(code: str, *arguments: str, **environ: str) -> list[Reported]:
        script = tmp_path / "train.py"
        script.write_text(REPORT + textwrap.dedent(code))
        environ = clean_environ({"REPORTS": str(tmp_path), **environ})
        process = run([sys.executable, *arguments, str(script)], env=environ, nursery=True)
        assert process.returncode == 0, process.stderr
        reported = [json.loads(path.read_text()) for path in tmp_path.glob("reported-*")]
        return sorted(reported, key=lambda one: (one["attempt"], one["run"], one["rank"]))

    return launch


REPORT = """
import json, os
from trackside.environment.identity import identify

def report():
    reported = identify()
    found = {name: getattr(reported, name) for name in ("run", "attempt", "rank", "local_rank", "world", "local_world")}
    with open(f"{os.environ['REPORTS']}/reported-{os.getpid()}", "w") as file:
        json.dump({**found, "port": os.environ.get("MASTER_PORT")}, file)
    return reported
"""


@pytest.mark.parametrize("name", ["", pytest.param("job-17", marks=pytest.mark.only_soak)])
def test_a_torchrun_restart_is_the_same_run_although_its_port_may_change(
    launched: Callable[..., list[Reported]], tmp_path: Path, name: str
) -> None:
    meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint={tmp_path / 'meeting'}", "--rdzv-conf=store_type=file"]
    reported = launched(
        """
        reported = report()
        if reported.attempt == 0:
            while sum(name.startswith("reported-") for name in os.listdir(os.environ["REPORTS"])) < 2:
                pass
            raise SystemExit(reported.rank)
        """,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        "--max-restarts=1",
        *meeting,
        *([f"--rdzv-id={name}"] if name else []),
        TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
    )
    assert [(one["attempt"], one["rank"], one["world"]) for one in reported] == [
        (0, 0, 2),
        (0, 1, 2),
        (1, 0, 2),
        (1, 1, 2),
    ]
    assert len({one["run"] for one in reported}) == 1
    assert reported[0]["run"].startswith("torchrun-job-17" if name else "launch-")
    assert len({one["port"] for one in reported}) == 2


def test_what_torch_spawns_at_once_is_one_run_and_what_it_spawns_next_another(
    launched: Callable[..., list[Reported]],
) -> None:
    reported = launched(
        """
        def train(rank, meeting):
            import torch.distributed
            torch.distributed.init_process_group("gloo", rank=rank, world_size=2, init_method=f"file://{meeting}")
            report()
            torch.distributed.destroy_process_group()

        if __name__ == "__main__":
            import torch.multiprocessing
            for number in range(2):
                torch.multiprocessing.spawn(train, (f"{os.environ['REPORTS']}/meeting-{number}",), nprocs=2)
        """
    )
    assert [(one["rank"], one["local_rank"], one["world"], one["local_world"]) for one in reported] == [
        (0, 0, 2, 2),
        (1, 1, 2, 2),
    ] * 2
    assert reported[0]["run"] == reported[1]["run"] != reported[2]["run"] == reported[3]["run"]
