"""Who this process is: its run, its rank, its attempt, as the launcher's environment tells.

The client alone decides the run's id, so that a run has one even with no daemon there, and all ranks on all nodes agree.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trackside.git import commit
from trackside.wire import Identity, writable

if TYPE_CHECKING:
    from collections.abc import Mapping

_RANK = ("RANK", "OMPI_COMM_WORLD_RANK")
_WORLD = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE")
_LOCAL_RANK = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
_LOCAL_WORLD = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
_ATTEMPT = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
_JOB = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")


def identify(
    name: str | None = None, run: str | None = None, environ: Mapping[str, str] = os.environ, proc: Path = Path("/proc")
) -> Identity:
    """This process's `Identity`.

    Args:
        name: What people will see; default ``$TRACKSIDE_RUN_NAME``, else the script's name with the job's id.
        run: The run's id; default ``$TRACKSIDE_RUN_ID``, else the launcher's, else random.
        environ: The environment to read: torchrun's, Slurm's (inside ``srun``) and Open MPI's variables.
        proc: Where the kernel's process files are.
    """
    environ = {key: writable(value) for key, value in environ.items()}
    srun = "SLURM_STEP_NUM_TASKS" in environ  # sbatch sets SLURM_PROCID too, for one process that is not a rank
    rank = _number(environ, *_RANK, *(("SLURM_PROCID",) if srun else ()))
    world = _number(environ, *_WORLD, "SLURM_STEP_NUM_TASKS") or 1
    local_rank = _number(environ, *_LOCAL_RANK, *(("SLURM_LOCALID",) if srun else ())) or 0
    job = next((environ[key] for key in _JOB if environ.get(key)), "")
    return Identity(
        run=writable(str(run or ""))
        or environ.get("TRACKSIDE_RUN_ID")
        or _launch(environ, proc, ranked=rank is not None),
        name=writable(str(name or "")) or environ.get("TRACKSIDE_RUN_NAME") or _script(job),
        attempt=_number(environ, *_ATTEMPT) or 0,
        rank=rank or 0,
        local_rank=local_rank,
        world=world,
        local_world=_number(environ, *_LOCAL_WORLD) or _tasks_here(environ),
        host=writable(os.uname().nodename),
        pid=os.getpid(),
        start=_start_time(proc, "self"),  # by its pid /proc may have another, if it is of another pid namespace
        boot=boot_id(proc),
        gpus=_gpus(environ.get("CUDA_VISIBLE_DEVICES", ""), local_rank),
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


def _tasks_here(environ: Mapping[str, str]) -> int:
    """How many tasks of a Slurm step are on this node: the one of ``4(x2),3`` that the node's number picks; else 1."""
    counts = re.findall(r"(\d+)(?:\(x(\d+)\))?", environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    node = _number(environ, "SLURM_NODEID") or 0
    for count, times in counts:
        node -= int(times or 1)
        if node < 0:
            return max(1, int(count))
    return 1


def _launch(environ: Mapping[str, str], proc: Path, *, ranked: bool) -> str:
    """The id that all ranks of one launch share: the launcher's own, else what is common to them and to nobody else."""
    if "SLURM_STEP_NUM_TASKS" in environ and environ.get("SLURM_JOB_ID"):
        return f"slurm-{environ['SLURM_JOB_ID']}.{environ.get('SLURM_STEP_ID', '0')}"
    elastic = environ.get("TORCHELASTIC_RUN_ID") or "none"
    if elastic != "none":  # the word that torchrun puts there by default, for everybody
        return f"torchrun-{elastic}"
    if not ranked:
        return os.urandom(6).hex()
    address = "-".join(environ[key] for key in ("MASTER_ADDR", "MASTER_PORT") if environ.get(key))
    if address and _number(environ, *_WORLD) != _number(environ, *_LOCAL_WORLD):
        return f"launch-{address}"  # several nodes have several launchers, so theirs cannot be part of it
    parent = os.getppid()
    return f"launch-{address or 'local'}-{parent}-{_start_time(proc, parent)}"


def _script(job: str) -> str:
    path = Path(writable(sys.argv[0]) if sys.argv and sys.argv[0] not in {"", "-c", "-m"} else "python")
    stem = path.parent.name if path.name == "__main__.py" else path.stem
    stem = "notebook" if stem == "ipykernel_launcher" else stem or "python"
    return f"{stem}-{job}" if job else stem


def _start_time(proc: Path, pid: int | str) -> int:
    """Clock ticks from boot to the process's start: /proc/PID/stat, field 22; 0 where it cannot be read."""
    try:
        return int((proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def boot_id(proc: Path) -> str:
    """What tells this boot of this machine from all others (/proc/sys/kernel/random/boot_id); empty without /proc."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _gpus(visible: str, local_rank: int) -> tuple[str, ...]:
    """The UUIDs among CUDA_VISIBLE_DEVICES; of several the one that the local rank takes by custom."""
    named = tuple(entry.strip() for entry in visible.split(",") if entry.strip().startswith(("GPU-", "MIG-")))
    return named[local_rank : local_rank + 1] or named
