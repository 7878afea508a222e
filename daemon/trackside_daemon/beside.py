"""Processes that run beside each other: started in sessions of their own, so that one Ctrl-C stops them in order."""

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

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class Child:
    """A process that ends when this one does, however this one ends.

    Args:
        arguments: What follows ``python -m``.
        environ: Added to this process's environment.
        mute: What it prints is dropped, but for complaints.
    """

    def __init__(self, *arguments: str, environ: Mapping[str, str] | None = None, mute: bool = False) -> None:
        self._process = subprocess.Popen(  # noqa: S603  arguments are a list; no shell reads them
            [sys.executable, "-m", *arguments],
            env={**os.environ, **(environ or {})},
            stdout=subprocess.DEVNULL if mute else None,
            start_new_session=True,
            preexec_fn=partial(die_with, os.getpid()),  # noqa: PLW1509  this process has one thread, so nothing is held
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


def stop_all(children: Sequence[Child]) -> None:
    """Stop the last started first."""
    for child in reversed(children):
        child.stop()


def die_with(parent: int) -> None:
    """Get SIGTERM when the parent dies, by prctl(2); should it be dead already, nothing begins."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != parent:
        os._exit(1)
