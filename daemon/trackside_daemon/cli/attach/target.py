"""A running process, as /proc describes it."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from trackside.environment.identity import start_time
from trackside.os_errors import os_error_text
from trackside_daemon.cli.errors import CommandError
from trackside_daemon.linux.child_process import output
from trackside_daemon.linux.user_names import user_name

PROC = Path("/proc")
VERSION_SECONDS = 10.0  # time limit for an interpreter to print its version

_VERSION = "import sys; print(*sys.version_info[:2])"


class AttachedProcess(NamedTuple):
    """A process of this user."""

    pid: int  # its id
    start: int  # its start, in clock ticks since boot
    command: tuple[str, ...]  # the program and its arguments
    directory: str  # its working directory
    environ: Mapping[str, str]  # its environment when it started
    program: str  # the path of its program
    version: tuple[int, ...]  # major and minor version of its Python; empty if it is no Python

    @property
    def script(self) -> str:
        """The script, or what follows ``-m``; for another program its name."""
        words = iter(self.command[1:] if self.version else ())
        for word in words:
            if word == "-m":
                return next(words, "").rpartition(".")[2]
            if word == "-c":
                break
            if word in {"-W", "-X"}:
                next(words, None)
            elif not word.startswith("-"):
                return word
        return Path(self.command[0]).name


def read_target(pid: int) -> AttachedProcess:
    """Return the process with an id.

    Raises:
        CommandError: There is none, or it is another user's.
    """
    place = PROC / str(pid)
    try:
        owner = place.stat().st_uid
        if owner != os.getuid():  # its program is run below, and it gets code
            user = user_name(owner) or str(owner)
            raise CommandError(f"process {pid} is of user {user}; run trackside attach as that user")
        command = tuple(map(os.fsdecode, filter(None, (place / "cmdline").read_bytes().split(b"\0"))))
        variables = (os.fsdecode(one).partition("=") for one in (place / "environ").read_bytes().split(b"\0"))
        program = str((place / "exe").readlink())
        directory = str((place / "cwd").readlink())
    except FileNotFoundError:
        raise CommandError(f"there is no process {pid}") from None
    except OSError as error:
        raise CommandError(f"process {pid} cannot be read: {os_error_text(error)}") from None
    if not command:
        raise CommandError(f"process {pid} is of the kernel, or has ended")
    environ = {name: value for name, sign, value in variables if sign}
    return AttachedProcess(pid, start_time(PROC, pid), command, directory, environ, program, _version(program))


def _version(program: str) -> tuple[int, ...]:
    if not Path(program).name.startswith("python"):
        return ()
    try:
        return tuple(map(int, output([program, "-I", "-c", _VERSION], VERSION_SECONDS).split()))
    except ValueError:  # another program whose name begins like Python's
        return ()
