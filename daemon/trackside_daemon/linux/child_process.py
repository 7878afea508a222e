"""Start Python processes in sessions of their own, so that one Ctrl-C stops them in order, and the user's command.

One of our own modules never imports from the working directory.
"""

import os
import signal
import subprocess  # noqa: TID251  this file starts the user's and the demo's processes
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from stat import S_IWGRP, S_IWOTH
from typing import IO

from trackside_daemon.linux.signals import end_with_parent


class ChildProcess:
    """A process that ends when this one does, even when this one is killed.

    Args:
        arguments: A module of ours, and its arguments.
        environ: Variables that are added to this process's environment.
        mute: Discard its standard output, but not its standard error.
        log: A file for its standard error. Such a child inherits no standard stream and may outlive this process.
        stdin: A file for its standard input.
    """

    def __init__(
        self,
        *arguments: str,
        environ: Mapping[str, str] | None = None,
        mute: bool = False,
        log: IO[bytes] | None = None,
        stdin: IO[bytes] | None = None,
    ) -> None:
        end_with_this_process = partial(end_with_parent, os.getpid(), signal.SIGTERM)
        self._process = subprocess.Popen(  # noqa: S603  arguments are a list; no shell reads them
            own_module(*arguments),
            env={**os.environ, **(environ or {})},
            stdin=stdin if log is None else subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if mute or log is not None else None,
            stderr=log,
            start_new_session=True,
            preexec_fn=end_with_this_process if log is None else None,  # noqa: PLW1509  one thread, so no lock is held
        )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status; None while it runs."""
        return self._process.poll()

    def send(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if self.status is None:
            self._process.send_signal(number)

    def stop(self, timeout: float = 10.0, number: int = signal.SIGTERM) -> int:
        """Send a signal, wait at most *timeout* seconds, then kill it; return the exit status."""
        self.send(number)
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


class Command:
    """The user's command, in this process's group, with its standard streams and its terminal, as if started directly.

    Args:
        arguments: The program and its arguments.
        environ: Variables that are added to this process's environment.
        streams: Descriptors for its standard output and error; None for this process's own.

    Raises:
        OSError: The program cannot be started.
    """

    def __init__(
        self, arguments: Sequence[str], environ: Mapping[str, str], streams: tuple[int, int] | None = None
    ) -> None:
        output, errors = streams or (None, None)
        self._process = subprocess.Popen(  # noqa: S603  the user's own
            list(arguments), env={**os.environ, **environ}, stdout=output, stderr=errors
        )

    @property
    def pid(self) -> int:
        """Process id of the command."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status as a shell gives it, 128 and the signal's number after a signal; None while it runs."""
        code = self.code
        return 128 - code if code is not None and code < 0 else code

    @property
    def code(self) -> int | None:
        """The exit status, or the number of its signal below 0; None while it runs."""
        if not hasattr(os, "waitid"):  # macOS before Python 3.13
            return self._process.poll()
        # WNOWAIT leaves a zombie until `reap`: before Linux 6.15 a daemon reads from it how the process ended.
        ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def send(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if self.status is None:
            # Not Popen.send_signal(): it polls first, which would reap the zombie.
            os.kill(self._process.pid, number)

    def reap(self) -> int:
        """Wait for its end, reap it, and return its exit status, or the number of its signal below 0."""
        return self._process.wait()


def output(arguments: Sequence[str], timeout: float) -> str:
    """Return what a program writes to its standard output; empty if it fails, or runs for more than *timeout* seconds."""
    quiet = subprocess.DEVNULL
    try:
        done = subprocess.run(  # noqa: S603  arguments are a list; no shell reads them
            arguments, stdin=quiet, stdout=subprocess.PIPE, stderr=quiet, timeout=timeout, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode(errors="replace")


def stop_all(children: Sequence[ChildProcess]) -> None:
    """Stop children, the last started first."""
    for child in reversed(children):
        child.stop()


# ``-m`` puts the working directory before the standard library, and others may write there. -P is of Python 3.11.
_WITHOUT_DIRECTORY = (
    "import sys; sys.path[:] = [entry for entry in sys.path if entry]; "
    "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def own_module(module: str, *arguments: str, python: str = sys.executable) -> list[str]:
    """Return the command that runs a module of trackside.

    Args:
        module: Its name.
        arguments: Its arguments.
        python: The interpreter, of any version; this process's by default.
    """
    if python == sys.executable and sys.version_info >= (3, 11):
        return [python, "-P", "-m", module, *arguments]
    return [python, "-c", _WITHOUT_DIRECTORY, module, *arguments]


def import_warnings(directory: Path, path: Sequence[str] = sys.path) -> Iterator[str]:
    """Yield one line if this process imports from its working directory, where others may write.

    Args:
        directory: The working directory.
        path: Where modules are looked for.
    """
    if not {"", str(directory)} & {*path}:
        return
    about = directory.stat()
    shared = about.st_mode & S_IWOTH or (about.st_mode & S_IWGRP and about.st_gid != os.getegid())
    if shared or about.st_uid not in {0, os.geteuid()}:
        yield (
            f"this daemon imports from its working directory {directory}, where others may write, and so run as this user; "
            "start it elsewhere, without an empty entry in PYTHONPATH"
        )
