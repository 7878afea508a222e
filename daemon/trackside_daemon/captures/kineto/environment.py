"""The environment in which PyTorch asks this daemon for profiles, and the versions for which it is set."""

import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from trackside.captures.kineto import OTHER_DAEMON, is_tested, serves_this_user, variables
from trackside.environment.identity import start_time
from trackside_daemon.linux.child_process import output

FIRST_REQUEST_SECONDS = 60.0  # PyTorch first asks 6 s after its import, which may take long

VERSION_SECONDS = 10.0  # time limit for an interpreter to print the version

# Without the working directory, where a module may have the name of one of the standard library.
_VERSION = "import sys; sys.path[:] = filter(None, sys.path); import importlib.metadata as m; print(m.version('torch'))"
_PYTHON = re.compile(r"python[\d.]*")
_SHEBANG = re.compile(rb"#!\s*(?:\S+/env\s+)?(\S*python[\d.]*)\s")


def missing_variables(directory: Path, command: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to set for a command; none unless it runs a tested version of PyTorch.

    Args:
        directory: The directory of a daemon's socket.
        command: The program and its arguments.
        environ: Its other variables, which are not changed.
    """
    if (
        not environ.keys().isdisjoint(OTHER_DAEMON)
        or not serves_this_user(directory)
        or not is_tested(torch_version(command[0]))
    ):
        return {}
    return {name: value for name, value in variables(directory).items() if name not in environ}


def will_ask(pid: int, directory: Path, proc: Path = Path("/proc")) -> bool:
    """Return whether a process that has not asked yet has just been started with the variables for a directory."""
    try:
        environ = (proc / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or belongs to another user
        return False
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - start_time(proc, pid) / os.sysconf("SC_CLK_TCK")
    return b"KINETO_IPC_SOCKET_DIR=" + os.fsencode(directory) in environ and age < FIRST_REQUEST_SECONDS


def torch_version(program: str) -> str:
    """Return the version of PyTorch that a Python program imports; empty if there is none or it is no Python program."""
    python = interpreter(program)
    return output([python, "-c", _VERSION], VERSION_SECONDS).strip() if python else ""


def interpreter(program: str) -> str:
    """Return the interpreter of a program in ``$PATH``, which is itself one or a script of one; empty for all else.

    A shell script may choose another interpreter than the one in ``$PATH``.
    """
    path = shutil.which(program) or ""
    if _PYTHON.fullmatch(Path(path).name):
        return path
    try:
        with Path(path).open("rb") as file:
            shebang = _SHEBANG.match(file.read(256))
    except OSError:
        return ""
    return (shutil.which(os.fsdecode(shebang[1])) or "") if shebang else ""
