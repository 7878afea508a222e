"""Processes that run beside each other: ours in sessions of their own, so that one Ctrl-C stops them in order."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess  # noqa: TID251  this is the file that starts the user's and the demo's processes
import sys
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import IO

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class ChildProcess:
    """A process that ends when this one does, however this one ends.

    Args:
        arguments: What follows ``python -m``.
        environ: Added to this process's environment.
        mute: What it prints is dropped, but for complaints.
        log: A file that takes its complaints. Such a child has nothing of this process's and may outlive it.
    """

    def __init__(
        self,
        *arguments: str,
        environ: Mapping[str, str] | None = None,
        mute: bool = False,
        log: IO[bytes] | None = None,
    ) -> None:
        self._process = subprocess.Popen(  # noqa: S603  arguments are a list; no shell reads them
            [sys.executable, "-m", *arguments],
            env={**os.environ, **(environ or {})},
            stdin=None if log is None else subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if mute or log is not None else None,
            stderr=log,
            start_new_session=True,
            preexec_fn=partial(die_with, os.getpid()) if log is None else None,  # noqa: PLW1509  this process has one thread, so nothing is held
        )

    @property
    def status(self) -> int | None:
        """The exit status; None while it runs."""
        return self._process.poll()

    def send(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if self.status is None:
            self._process.send_signal(number)

    def stop(self, timeout: float = 10.0) -> int:
        """Ask it to end, wait at most *timeout* seconds, then kill it; returns the exit status."""
        self.send(signal.SIGTERM)
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


class Command:
    """The user's command, as if it ran alone: in this process's group, with its standard streams and its terminal.

    Args:
        arguments: The program and what it is given.
        environ: Added to this process's environment.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(self, arguments: Sequence[str], environ: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(list(arguments), env={**os.environ, **environ})  # noqa: S603  the user's own

    @property
    def status(self) -> int | None:
        """Its exit status as a shell tells it, 128 and the signal's number when one ended it; None while it runs.

        Until `reap` it stays a zombie, by which a daemon on an older kernel than Linux 6.15 sees how it ended.
        """
        ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else 128 + ended.si_status

    def send(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if self.status is None:
            os.kill(self._process.pid, number)

    def reap(self) -> None:
        """Wait for its end, and let it go."""
        self._process.wait()


def stop_all(children: Sequence[ChildProcess]) -> None:
    """Stop the last started first."""
    for child in reversed(children):
        child.stop()


def die_with(parent: int, number: int = signal.SIGTERM) -> None:
    """Get a signal when the parent dies, by prctl(2); should it be dead already, nothing begins."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(number))
    if os.getppid() != parent:
        os._exit(1)
