"""The id of a process in its own pid namespace."""

from pathlib import Path


def own_pid(proc: Path, pid: int) -> int:
    """Return the id that a process itself sees (/proc/PID/status, NSpid); *pid* before Linux 4.1.

    Args:
        proc: Path of procfs.
        pid: The process in this process's namespace.

    Raises:
        OSError: There is no such process, or it is hidden.
    """
    status = (proc / str(pid) / "status").read_bytes()
    pids = status.partition(b"\nNSpid:")[2].partition(b"\n")[0].split()
    return int(pids[-1]) if pids else pid
