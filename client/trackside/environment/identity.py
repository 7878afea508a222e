"""Who this process is: its run, its rank, its attempt, as the launcher's environment tells.

The client alone decides the run's id, so that a run has one even with no daemon there, and all ranks on all nodes agree.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trackside.environment.git import commit
from trackside.environment.visible_gpus import visible_gpus
from trackside.packing import writable
from trackside.wire import Identity

if TYPE_CHECKING:
    from collections.abc import Mapping

_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_WORLD = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_LOCAL_RANK = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_LOCAL_WORLD = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "LOCAL_SIZE")
_JOB = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
_POD_INDEX = ("JOB_COMPLETION_INDEX", "VC_TASK_INDEX", "VK_TASK_INDEX")


class _Place(NamedTuple):
    """Where a process is among the ranks; None where nothing tells."""

    rank: int | None
    world: int | None
    local_rank: int | None
    local_world: int | None


def identify(
    name: str | None = None, run: str | None = None, environ: Mapping[str, str] = os.environ, proc: Path = Path("/proc")
) -> Identity:
    """This process's `Identity`.

    Args:
        name: What people will see; default ``$TRACKSIDE_RUN_NAME``, else the script's name with the job's id.
        run: The run's id; default ``$TRACKSIDE_RUN_ID``, else the launcher's, else random.
        environ: The environment to read: the variables of torchrun, Slurm (inside ``srun``), Open MPI, MPICH and
            Kubernetes. Where they name no rank, an initialised ``torch.distributed`` does.
        proc: Where the kernel's process files are.
    """
    environ = {key: writable(value) for key, value in environ.items()}
    place = _place(environ)
    local_rank = place.local_rank or 0
    job = _job(environ)
    return Identity(
        run=writable(str(run or "")) or environ.get("TRACKSIDE_RUN_ID") or _launch(environ, proc, place),
        name=writable(str(name or "")) or environ.get("TRACKSIDE_RUN_NAME") or _script(job),
        attempt=_attempt(environ),
        rank=place.rank or 0,
        local_rank=local_rank,
        world=place.world or 1,
        local_world=place.local_world or 1,
        host=writable(os.uname().nodename),
        pid=os.getpid(),
        start=start_time(proc, "self"),  # by its pid /proc may have another, if it is of another pid namespace
        boot=boot_id(proc),
        gpus=visible_gpus(environ, local_rank),
        job_id=job,
        git_commit=commit(sys.argv[0] if sys.argv else ""),
        framework=framework(),
    )


def framework() -> str:
    """The framework that is imported by now and its version, such as ``torch 2.13.0``; empty when there is none."""
    found = next((name for name in ("torch", "jax", "tensorflow") if name in sys.modules), "")
    return f"{found} {getattr(sys.modules[found], '__version__', '')}".strip() if found else ""


def _number(environ: Mapping[str, str], *keys: str) -> int | None:
    texts = (environ.get(key, "") for key in keys)
    return next((int(text) for text in texts if text.isdecimal() and len(text) < 18), None)


def _place(environ: Mapping[str, str]) -> _Place:
    """This process's place: as the environment has it, unless a process group knows of more ranks."""
    task = _is_task(environ)
    place = _Place(
        _number(environ, *_RANK, *(("SLURM_PROCID",) if task else ())),
        _number(environ, *_WORLD, *(("SLURM_STEP_NUM_TASKS",) if task else ())),
        _number(environ, *_LOCAL_RANK, *(("SLURM_LOCALID",) if task else ())),
        _number(environ, *_LOCAL_WORLD) or (_tasks_here(environ) if task else None),
    )
    group = _process_group()
    if group is not None and (place.rank is None or group[1] > (place.world or 1)):
        # A task that spawns ranks: they are spread over the nodes as the tasks are.
        spread = group[1] * place.local_world // place.world if place.local_world and place.world else None
        place = _Place(*group, _number(environ, "LOCAL_RANK"), _number(environ, "LOCAL_WORLD_SIZE") or spread)
    if place.rank is None or place.local_world is not None or _address(environ):
        return place
    local_rank = place.rank if place.local_rank is None else place.local_rank
    return place._replace(local_rank=local_rank, local_world=place.world)


def _is_task(environ: Mapping[str, str]) -> bool:
    """Whether ``srun`` has started this, as a rank of its step.

    sbatch sets SLURM_PROCID too, for one process that is no rank. A shell on a terminal (``srun --pty``, ``salloc``) is a
    step of one task, in which any number of trainings may be started one after the other.
    """
    tasks = _number(environ, "SLURM_STEP_NUM_TASKS")
    return tasks is not None and not (tasks == 1 and "SLURM_PTY_WIN_COL" in environ)


def _process_group() -> tuple[int, int] | None:
    """Rank and world of torch.distributed's process group, if there is one by now; both are known without a message."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
    except Exception:  # noqa: BLE001  it may be half imported, or be destroyed meanwhile, and training must go on
        return None
    return None


def _address(environ: Mapping[str, str]) -> str:
    """The host of rank 0, by a name that all nodes have for it; empty when there is none or it is this machine."""
    address = environ.get("MASTER_ADDR", "")
    if address not in {"localhost", "::1"} and not address.startswith("127."):
        return address
    pod = environ.get("HOSTNAME", "")  # Kubeflow's PyTorchJob calls its master localhost there, by its name elsewhere
    return pod if "KUBERNETES_SERVICE_HOST" in environ and pod.endswith("-master-0") else ""


def _attempt(environ: Mapping[str, str]) -> int:
    """How often the run was restarted: by Slurm, which requeues the job, and by torchrun within each of those."""
    each = (_number(environ, "TORCHELASTIC_MAX_RESTARTS") or 0) + 1
    return (_number(environ, "SLURM_RESTART_COUNT") or 0) * each + (_number(environ, "TORCHELASTIC_RESTART_COUNT") or 0)


def _job(environ: Mapping[str, str]) -> str:
    """The id of the cluster's job; in Kubernetes the name of what has made the pod, where the pod can tell."""
    named = next((environ[key] for key in _JOB if environ.get(key)), "")
    if named or "KUBERNETES_SERVICE_HOST" not in environ:
        return named
    told = environ.get("JOBSET_NAME") or environ.get("LWS_LEADER_ADDRESS", "").partition(".")[0]
    if told:
        return told
    pod = environ.get("HOSTNAME", "")
    if (role := re.fullmatch(r"(.+)-(?:master|worker|node-\d+)-\d+", pod)) is not None:  # Kubeflow's, Volcano's
        return role[1]
    index = next((environ[key] for key in _POD_INDEX if environ.get(key)), "")
    return pod.removesuffix(f"-{index}") if index and pod.endswith(f"-{index}") else ""


def _tasks_here(environ: Mapping[str, str]) -> int:
    """How many tasks of a Slurm step are on this node: the one of ``4(x2),3`` that the node's number picks; else 1."""
    counts = re.findall(r"(\d+)(?:\(x(\d+)\))?", environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    node = _number(environ, "SLURM_NODEID") or 0
    for count, times in counts:
        node -= int(times or 1)
        if node < 0:
            return max(1, int(count))
    return 1


def _launch(environ: Mapping[str, str], proc: Path, place: _Place) -> str:
    """The id that all ranks of one launch share: the launcher's own, else what is common to them and to nobody else."""
    if place.rank is None:
        return os.urandom(6).hex()
    world = place.world or 1
    # A task of mpirun or srun is a rank, or has the ranks of a node under it, as with torchrun. Else they are launches
    # side by side, of which each has its own id.
    tasks = {world // (place.local_world or 1)} | (set() if "TORCHELASTIC_RUN_ID" in environ else {world})
    mpirun = environ.get("OMPI_MCA_orte_precondition_transports") or environ.get("PMIX_NAMESPACE")
    if mpirun and _number(environ, "OMPI_COMM_WORLD_SIZE") in tasks:
        return f"mpi-{mpirun}"
    if _is_task(environ) and environ.get("SLURM_JOB_ID") and _number(environ, "SLURM_STEP_NUM_TASKS") in tasks:
        return f"slurm-{environ['SLURM_JOB_ID']}.{environ.get('SLURM_STEP_ID', '0')}"
    elastic = environ.get("TORCHELASTIC_RUN_ID") or "none"
    if elastic != "none":  # the word that torchrun puts there by default, for everybody
        return f"torchrun-{elastic}"
    address, port = _address(environ), environ.get("MASTER_PORT", "")
    if address and world != place.local_world:
        return f"launch-{address}-{port}".rstrip("-")  # several nodes have several launchers: theirs is no part of it
    return _launcher(environ, proc, place.rank)


def _launcher(environ: Mapping[str, str], proc: Path, rank: int) -> str:
    """The id of all ranks that one process of this machine has started at once; the port may change at a restart."""
    children = "NODE_RANK" in environ and "RANK" not in environ  # Lightning's rank 0 has started the others itself
    parent = os.getpid() if children and _number(environ, "LOCAL_RANK") == 0 else os.getppid()
    # Of several torch.multiprocessing.spawn in one process each has the next numbers for its processes.
    processes = sys.modules.get("multiprocessing.process")
    number = () if processes is None else getattr(processes.current_process(), "_identity", ())
    first = f"-{number[-1] - rank}" if number else ""
    return f"launch-{boot_id(proc)[:8] or 'local'}-{parent}-{start_time(proc, parent)}{first}"


def _script(job: str) -> str:
    path = Path(writable(sys.argv[0]) if sys.argv and sys.argv[0] not in {"", "-c", "-m"} else "python")
    stem = path.parent.name if path.name == "__main__.py" else path.stem
    stem = "notebook" if stem == "ipykernel_launcher" else stem or "python"
    return f"{stem}-{job}" if job else stem


def stat(proc: Path, pid: int | str) -> list[bytes]:
    """/proc/PID/stat from field 3 on; bytes, since the process's name before them may be any.

    Raises:
        OSError: The process is gone, or hidden.
    """
    return (proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()


def start_time(proc: Path, pid: int | str) -> int:
    """Clock ticks from boot to the process's start: /proc/PID/stat, field 22; 0 where it cannot be read."""
    try:
        return int(stat(proc, pid)[19])
    except (OSError, ValueError, IndexError):
        return 0


def boot_id(proc: Path) -> str:
    """What tells this boot of this machine from all others (/proc/sys/kernel/random/boot_id); empty without /proc."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
