"""Every way in which a training's process can end, and the state and cause that follow."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

MEMORY_BYTES = 128 << 20
"""What a training may use before the OOM killer comes: a few times what Python and the client need."""

SCRIPT = """
import atexit, os, signal, sys
if "CGROUP" in os.environ:
    with open(os.environ["CGROUP"], "w") as file:
        file.write(str(os.getpid()))
atexit.register(lambda: {late})  # handlers run in reverse order, so after the client's
import trackside
for step in range(10):
    trackside.push(step=step, loss=0.5)
print("trains", flush=True)
sys.stdin.readline()
{end}
"""
"""Pushes, and ends when a line comes."""


class End(NamedTuple):
    """A way to end.

    Attributes:
        code: The script's last line.
        state: The final state of the run, for its *cause*.
        known: The facts about the exit in the history's ``rank_ended``.
        late: The action of an exit handler that runs after the client's.
    """

    code: str
    state: str
    cause: str
    known: dict[str, int | str] = {}  # noqa: RUF012  never changed
    late: str = "None"


ENDS = {
    "the-end": End("", "finished", ""),
    "exception": End("raise ValueError('loss')", "failed", "ValueError: loss"),
    "sys-exit-0": End("sys.exit(0)", "finished", ""),
    "sys-exit-3": End("sys.exit(3)", "failed", "exit status 3", {"status": 3}),
    "sys-exit-text": End("sys.exit('no data')", "failed", "exit status 1: no data", {"status": 1}),
    "sys-exit-caught": End(
        "import contextlib\nwith contextlib.suppress(SystemExit): sys.exit('no data')", "finished", ""
    ),
    "sys-exit-in-with": End("with trackside.default_run.open_run(): sys.exit(7)", "failed", "exit status 7"),
    "os-exit-0": End("os._exit(0)", "finished", "", {"status": 0}),
    "os-exit-3": End("os._exit(3)", "failed", "exit status 3", {"status": 3}),
    "finish-then-exit-3": End("trackside.finish(); sys.exit(3)", "finished", ""),
    "sigterm": End("os.kill(os.getpid(), signal.SIGTERM)", "stopped", "SIGTERM", {"signal": "SIGTERM"}),
    "ctrl-c": End("signal.raise_signal(signal.SIGINT)", "stopped", "KeyboardInterrupt"),
    "sigint": End(
        "signal.signal(signal.SIGINT, signal.SIG_DFL); signal.raise_signal(signal.SIGINT)",
        "stopped",
        "SIGINT",
        {"signal": "SIGINT"},
    ),
    "sigkill": End("os.kill(os.getpid(), signal.SIGKILL)", "failed", "SIGKILL", {"signal": "SIGKILL"}),
    "sigsegv": End("os.kill(os.getpid(), signal.SIGSEGV)", "failed", "SIGSEGV", {"signal": "SIGSEGV"}),
    "crash-at-exit": End(
        "sys.exit(0)",
        "failed",
        "SIGSEGV",
        {"signal": "SIGSEGV"},
        late="os.kill(os.getpid(), signal.SIGSEGV)",
    ),
    "killed-at-exit": End("", "finished", "", late="os.kill(os.getpid(), signal.SIGKILL)"),
    "oom": End("bytearray(1 << 30)", "failed", "OOM killed", {"signal": "SIGKILL"}),
}


def script(end: End) -> str:
    """Return a training that ends in this way."""
    return SCRIPT.format(end=end.code, late=end.late)


@contextmanager
def memory_cgroup(name: str, size: int = MEMORY_BYTES) -> Iterator[Path]:
    """Yield the file by which a process joins a cgroup (v1 or v2) of *size* bytes; only root can make one.

    Raises:
        OSError: This machine does not allow it.
    """
    v1 = Path("/sys/fs/cgroup/memory")
    place = (v1 if v1.is_dir() else Path("/sys/fs/cgroup")) / name
    place.mkdir()
    try:
        limit = place / ("memory.limit_in_bytes" if v1.is_dir() else "memory.max")
        limit.write_text(str(size))
        yield place / "cgroup.procs"
    finally:
        place.rmdir()
