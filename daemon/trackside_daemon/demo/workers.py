"""The data loader's workers of a simulated rank: processes that are called as PyTorch calls them, and wait."""

from __future__ import annotations

import ctypes
import os
import signal

from trackside_daemon.linux.parent_death import end_with_parent

NAME = b"pt_data_worker"
_PR_SET_NAME = 15
_libc = ctypes.CDLL(None)


class Workers:
    """Forked at once from a process that has no threads yet; they end when it does, however it ends."""

    def __init__(self, count: int) -> None:
        self._pids = [_fork() for _ in range(count)]

    def end(self) -> None:
        """End them, and wait for that."""
        for pid in self._pids:
            os.kill(pid, signal.SIGTERM)
        for pid in self._pids:
            os.waitpid(pid, 0)


def _fork() -> int:
    """A worker's pid; the worker itself never returns from here."""
    parent = os.getpid()
    if pid := os.fork():
        return pid
    try:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # status 0, as a loader's own workers at its end
        _libc.prctl(_PR_SET_NAME, NAME)
        end_with_parent(parent, signal.SIGTERM)
        while True:
            signal.pause()
    finally:
        os._exit(1)
