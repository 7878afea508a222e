"""Determine the run, rank, attempt and GPUs of this process from the launcher's environment.

The client alone decides the run's id, so that a run has one without a daemon, and all ranks on all nodes agree.
"""

import os
import re
import sys
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from trackside.environment.git import commit
from trackside.packing import writable
from trackside.redact import redact_text
from trackside.wire import Identity

_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_WORLD = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_LOCAL_RANK = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_LOCAL_WORLD = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "LOCAL_SIZE")
_JOB = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
_SHARED = ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TRACKSIDE_RUN_NAME")
_POD_INDEX = ("JOB_COMPLETION_INDEX", "VC_TASK_INDEX", "VK_TASK_INDEX")


class _Place(NamedTuple):
    """Place of a process among the ranks; None for what is unknown."""

    rank: int | None
    world: int | None
    local_rank: int | None
    local_world: int | None


def identify(
    name: str | None = None,
    run: str | None = None,
    environ: Mapping[str, str] = os.environ,
    proc: Path = Path("/proc"),
    names: dict[str, str] | None = None,
) -> Identity:
    """Return this process's `Identity`.

    Args:
        name: Name of the run. Default: ``$TRACKSIDE_RUN_NAME``, else that of Ray's experiment or trial, else the script's
            name with the job's id; without a script the working directory's name.
        run: Id of the run. Default: ``$TRACKSIDE_RUN_ID``, else Ray's, else the launcher's, else random.
        environ: Environment with the variables of torchrun, Slurm (inside ``srun``), Open MPI, MPICH and Kubernetes. If
            they name no rank, an initialized ``torch.distributed`` does.
        proc: Mount point of the kernel's process files.
        names: Names that this process has given before, by the id that a launcher gave; this adds to them. A second name
            is another run, whose id ends with a number that follows from the name.
    """
    environ = {key: writable(value) for key, value in environ.items()}
    place = _place(environ)
    local_rank = place.local_rank or 0
    job = _job(environ)
    ray_name, ray_id = ray_run(environ) or ("", "")
    given = redact_text(writable(str(name or "")) or environ.get("TRACKSIDE_RUN_NAME", ""))
    own_name = given or redact_text(ray_name or _script(job))
    # After a restart of the command, only the run of this name continues; others of the command are none of its attempts.
    continued = environ.get("TRACKSIDE_RESTARTED_RUN", own_name) == own_name
    wanted = environ.get("TRACKSIDE_RUN_ID") if continued else ""
    run_id = redact_text(writable(str(run or "")) or wanted or ray_id)
    if not run_id:
        run_id = _launch(environ, proc, place)
        if given and names is not None and names.setdefault(run_id, given) != given:
            run_id += f"-{crc32(given.encode()):08x}"
    return Identity(
        run=run_id,
        name=own_name,
        attempt=_attempt(environ),
        rank=place.rank or 0,
        local_rank=local_rank,
        world=place.world or 1,
        local_world=place.local_world or 1,
        host=writable(os.uname().nodename),
        pid=os.getpid(),
        start=start_time(proc, "self"),  # in another pid namespace, /proc/PID may be another process
        boot=boot_id(proc),
        gpus=visible_gpus(environ, local_rank),
        job_id=job,
        git_commit=commit(sys.argv[0] if sys.argv else ""),
        framework=framework(),
    )


def framework() -> str:
    """Return the imported framework and its version, such as ``torch 2.13.0``; empty if there is none."""
    name = next((name for name in ("torch", "jax", "tensorflow") if name in sys.modules), "")
    return f"{name} {getattr(sys.modules[name], '__version__', '')}".strip() if name else ""


def _number(environ: Mapping[str, str], *keys: str) -> int | None:
    texts = (environ.get(key, "") for key in keys)
    return next((int(text) for text in texts if text.isdecimal() and len(text) < 18), None)  # in int64


def _place(environ: Mapping[str, str]) -> _Place:
    """Return this process's place by the environment, or by the process group if that has more ranks."""
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
    # Without the address of another machine, all ranks run on this one.
    local_rank = place.rank if place.local_rank is None else place.local_rank
    return place._replace(local_rank=local_rank, local_world=place.world)


def _is_task(environ: Mapping[str, str]) -> bool:
    """Return whether ``srun`` has started this process, as a rank of its step."""
    # sbatch sets SLURM_PROCID too, for one process that is not a rank. A shell on a terminal (`srun --pty`, `salloc`) is
    # a step of one task, which may start any number of trainings one after the other.
    tasks = _number(environ, "SLURM_STEP_NUM_TASKS")
    return tasks is not None and not (tasks == 1 and "SLURM_PTY_WIN_COL" in environ)


def _process_group() -> tuple[int, int] | None:
    """Return rank and world of torch.distributed's process group, if there is one; reading them sends no message."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
    except Exception:  # noqa: BLE001  it may be half imported, or be destroyed meanwhile, and training must go on
        return None
    return None


def _address(environ: Mapping[str, str]) -> str:
    """Return the host of rank 0, by a name that all nodes use; empty if there is none or it is this machine."""
    address = environ.get("MASTER_ADDR", "")
    if address not in {"localhost", "::1"} and not address.startswith("127."):
        return address
    pod = environ.get("HOSTNAME", "")  # in Kubeflow's PyTorchJob the master's address is localhost on the master itself
    return pod if "KUBERNETES_SERVICE_HOST" in environ and pod.endswith("-master-0") else ""


def _attempt(environ: Mapping[str, str]) -> int:
    """Return the number of restarts: by Slurm, which requeues the job, and by torchrun within each of its starts."""
    each = (_number(environ, "TORCHELASTIC_MAX_RESTARTS") or 0) + 1
    return (_number(environ, "SLURM_RESTART_COUNT") or 0) * each + (_number(environ, "TORCHELASTIC_RESTART_COUNT") or 0)


def _job(environ: Mapping[str, str]) -> str:
    """Return the id of the cluster's job; in Kubernetes the name of the pod's owner, if the pod shows it."""
    job = next((environ[key] for key in _JOB if environ.get(key)), "")
    if job or "KUBERNETES_SERVICE_HOST" not in environ:
        return job
    owner = environ.get("JOBSET_NAME") or environ.get("LWS_LEADER_ADDRESS", "").partition(".")[0]
    if owner:
        return owner
    pod = environ.get("HOSTNAME", "")
    if (role := re.fullmatch(r"(.+)-(?:master|worker|node-\d+)-\d+", pod)) is not None:  # Kubeflow's, Volcano's
        return role[1]
    index = next((environ[key] for key in _POD_INDEX if environ.get(key)), "")
    return pod.removesuffix(f"-{index}") if index and pod.endswith(f"-{index}") else ""


def _tasks_here(environ: Mapping[str, str]) -> int:
    """Return the number of tasks of a Slurm step on this node, by the node's entry of ``4(x2),3``; else 1."""
    counts = re.findall(r"(\d+)(?:\(x(\d+)\))?", environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    node = _number(environ, "SLURM_NODEID") or 0
    for count, times in counts:
        node -= int(times or 1)
        if node < 0:
            return max(1, int(count))
    return 1


def _launch(environ: Mapping[str, str], proc: Path, place: _Place) -> str:
    """Return the id that all ranks of one launch share: the launcher's, else one derived from what they have in common."""
    if place.rank is None:
        return os.urandom(6).hex()  # not `random`, which a training may seed
    world = place.world or 1
    # A task of mpirun or srun is a rank, or has the ranks of a node below it, as with torchrun. Otherwise the tasks are
    # separate launches, with an id each.
    tasks = {world // (place.local_world or 1)} | (set() if "TORCHELASTIC_RUN_ID" in environ else {world})
    mpirun = environ.get("OMPI_MCA_orte_precondition_transports") or environ.get("PMIX_NAMESPACE")
    if mpirun and _number(environ, "OMPI_COMM_WORLD_SIZE") in tasks:
        return f"mpi-{mpirun}"
    if _is_task(environ) and environ.get("SLURM_JOB_ID") and _number(environ, "SLURM_STEP_NUM_TASKS") in tasks:
        return f"slurm-{environ['SLURM_JOB_ID']}.{environ.get('SLURM_STEP_ID', '0')}"
    elastic = environ.get("TORCHELASTIC_RUN_ID") or "none"
    if elastic != "none":  # torchrun's default, the same for all launches
        return f"torchrun-{elastic}"
    address, port = _address(environ), environ.get("MASTER_PORT", "")
    if port and "TORCHELASTIC_RUN_ID" in environ:
        address = address or boot_id(proc)[:8] or "local"
    if address and world != place.local_world:
        # Several nodes, or several agents of torchrun on one, are several launchers, so their pids are left out.
        return f"launch-{address}-{port}".rstrip("-")
    return _launcher(environ, proc, place, place.rank)


def _launcher(environ: Mapping[str, str], proc: Path, place: _Place, rank: int) -> str:
    """Return the id of all ranks that one process of this machine has started at once.

    A launcher starts one job: it is known by its pid. A shell or a script may start one after the other, so their jobs are
    known by the first rank of each.
    """
    # Not by the port, which may change at a restart. Lightning's rank 0 has started the others itself.
    starts_ranks = "NODE_RANK" in environ and "RANK" not in environ
    parent = os.getpid() if starts_ranks and _number(environ, "LOCAL_RANK") == 0 else os.getppid()
    # Each torch.multiprocessing.spawn of one process numbers its children on from the last.
    processes = sys.modules.get("multiprocessing.process")
    number = () if processes is None else getattr(processes.current_process(), "_identity", ())
    first = f"-{number[-1] - rank}" if number else ""
    is_launched = starts_ranks or bool(number) or "TORCHELASTIC_RUN_ID" in environ
    process = parent if is_launched else _first_rank(proc, parent, place)
    return f"launch-{boot_id(proc)[:8] or 'local'}-{process}-{start_time(proc, process)}{first}"


def _first_rank(proc: Path, parent: int, place: _Place) -> int:
    """Return the pid of the first rank, of those that live, of the job to which this rank belongs; without /proc the parent's.

    Ranks of a job are children of one parent that run the same program and share the variables in `_SHARED`. Without their
    ranks among the variables that they were started with, they have the same command, apart from numbers. The next job
    begins with a rank that the last one has, or when that has all of its ranks.
    """
    own = os.getpid()
    if (place.world or 1) == 1:
        return own if start_time(proc, "self") else parent
    mine = _started(proc, own)
    if mine is None:
        return parent
    found = [mine, *(_started(proc, pid) for pid in children(proc, parent) if pid != own)]
    first, ranks, count = own, set[int](), 0
    for one in sorted(one for one in found if one is not None and one.job == mine.job):
        if count == (place.local_world or place.world) or one.rank in ranks:
            ranks, count = set(), 0
        first = first if count else one.pid
        ranks |= set() if one.rank is None else {one.rank}
        count += 1
        if one.pid == own:
            break
    return first


class _Started(NamedTuple):
    """A process: when it started, its pid, what the ranks of its job share, and its rank, by its first environment."""

    start: int
    pid: int
    job: tuple[str, ...]
    rank: int | None


def _started(proc: Path, pid: int) -> _Started | None:
    """Return how a process was started; None if it has ended, or is another user's."""
    try:
        texts = (proc / str(pid) / "environ").read_bytes().decode(errors="surrogateescape").split("\0")
        environ = dict(text.partition("=")[::2] for text in texts)
        rank = _number(environ, *_RANK)
        command = (proc / str(pid) / "cmdline").read_bytes().decode(errors="replace") if rank is None else ""
        program = str((proc / str(pid) / "exe").readlink())
    except OSError:
        return None
    job = (program, re.sub(r"\d+", "", command), *(environ.get(name, "") for name in _SHARED))
    return _Started(start_time(proc, pid), pid, job, rank)


def children(proc: Path, parent: int) -> list[int]:
    """Return the pids of the children of a process, as far as *proc* shows them."""
    pids: list[int] = []
    try:
        lists = list((proc / str(parent) / "task").glob("*/children"))
        pids = [int(pid) for path in lists for pid in path.read_text().split()]
        if not lists:  # a kernel without them
            there = [int(path.name) for path in proc.iterdir() if path.name.isdecimal()]
            pids = [pid for pid in there if parent_of(proc, pid) == parent]
    except (OSError, ValueError):
        pass
    return pids


def _script(job: str) -> str:
    path = Path(writable(sys.argv[0]) if sys.argv else "")
    stem = path.parent.name if path.name == "__main__.py" else path.stem
    stem = "notebook" if stem == "ipykernel_launcher" else stem
    if stem in {"", "-", "-c", "-m"}:
        stem = _directory() or "python"
    return f"{stem}-{job}" if job else stem


def _directory() -> str:
    """Return the name of the working directory; empty if it is the root directory or deleted."""
    try:
        return writable(Path.cwd().name)
    except OSError:
        return ""


def stat(proc: Path, pid: int | str) -> list[bytes]:
    """Return the fields of /proc/PID/stat from field 3 on, as bytes, since the name before them may have any bytes.

    Raises:
        OSError: The process has ended, or is hidden.
    """
    return (proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()


def start_time(proc: Path, pid: int | str) -> int:
    """Return the process's start in clock ticks since boot (/proc/PID/stat, field 22); 0 if it cannot be read."""
    try:
        return int(stat(proc, pid)[19])
    except (OSError, ValueError, IndexError):
        return 0


def parent_of(proc: Path, pid: int | str) -> int:
    """Return the pid of a process's parent (/proc/PID/stat, field 4); 0 if it has none, or it cannot be read."""
    try:
        return int(stat(proc, pid)[1])
    except (OSError, ValueError, IndexError):
        return 0


def boot_id(proc: Path) -> str:
    """Return the id of this boot of this machine (/proc/sys/kernel/random/boot_id); empty without /proc."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def ray_run(environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the name and the id of this worker's Ray Train run or Ray Tune trial; None outside of one.

    The name is the experiment's or the trial's. A run that Ray restarts keeps its id.
    """
    if "RAY_JOB_ID" not in environ:  # only workers have it, and outside of one Ray's contexts print warnings
        return None
    tuning = "TUNE_ORIG_WORKING_DIR" in environ and "RANK" not in environ
    try:
        context = sys.modules["ray.tune" if tuning else "ray.train"].get_context()
        if tuning:
            return writable(context.get_trial_name()), writable(f"ray-{context.get_trial_id()}")
        name = context.get_experiment_name()
        session = sys.modules["ray"].get_runtime_context().get_session_name()
    except Exception:  # noqa: BLE001  a task or an actor of the user's own, or another version of Ray
        return None
    return writable(name), writable(f"ray-{session.removeprefix('session_')}-{name}")


def visible_gpus(environ: Mapping[str, str], local_rank: int) -> tuple[str, ...]:
    """Return the entries of CUDA_VISIBLE_DEVICES; of several only the one that the local rank uses by convention.

    CUDA reads up to the first entry that is neither a number nor a UUID, and sees no GPU if an entry comes twice. Its
    numbers begin with the fastest GPU. If they follow the bus, as nvidia-smi's do, ``3`` is returned as ``PCI-3``.

    Returns:
        Empty if the variable is not set, and ``none`` if it hides every GPU.
    """
    order = "PCI-" if environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" else ""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return ()
    entries = (entry.strip() for entry in visible.split(","))
    read = tuple(takewhile(lambda entry: entry.isdecimal() or entry.startswith(("GPU-", "MIG-")), entries))
    if not read or len(set(read)) < len(read):
        return ("none",)
    own = read[local_rank : local_rank + 1] or read
    return tuple(f"{order}{entry}" if entry.isdecimal() else entry for entry in own)


def gpu_name(environ: Mapping[str, str], index: int) -> str:
    """Return the name of a GPU by its *index* in this process, for a PyTorch that has no UUID of it."""
    entries = visible_gpus(environ, index)
    if len(entries) == 1 and entries[0] != "none":
        return entries[0]
    return f"PCI-{index}" if environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" else str(index)
