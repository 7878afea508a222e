"""Data loader workers of a simulated rank: processes with the name that PyTorch gives them, which only wait."""

from __future__ import annotations

import ctypes
import os
import signal

from trackside_daemon.linux.parent_death import end_with_parent

NAME = b"pt_data_worker"
_PR_SET_NAME = 15
_libc = ctypes.CDLL(None)


class Workers:
    """Forked processes that end with this one, however it ends.

    Fork them before the process starts a thread: a fork copies only the thread that forks.
    """

    def __init__(self, count: int) -> None:
        self._pids = [_fork() for _ in range(count)]

    def end(self) -> None:
        """End them, and wait until they have ended."""
        for pid in self._pids:
            os.kill(pid, signal.SIGTERM)
        for pid in self._pids:
            os.waitpid(pid, 0)


def _fork() -> int:
    """Return a worker's pid; in the worker itself, never return."""
    parent = os.getpid()
    if pid := os.fork():
        return pid
    try:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # status 0, like a real worker at its end
        _libc.prctl(_PR_SET_NAME, NAME)
        end_with_parent(parent, signal.SIGTERM)
        while True:
            signal.pause()
    finally:
        os._exit(1)
