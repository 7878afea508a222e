"""Faults of a daemon that goes on: each begins with a call of `Faults`, lasts, and is over."""

from __future__ import annotations

import os
import resource
import signal
import socket
import struct
import subprocess
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable

    from processes import Daemon

HOUR, YEAR = 3600.0, 365 * 86400.0


def compile_clock(directory: Path) -> Path:
    """Return the library of `MovedClock`."""
    library = directory / "moved_clock.so"
    source = Path(__file__).with_name("moved_clock.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", library, source, "-ldl"], check=True)
    return library


class MovedClock:
    """Unix time of the processes with `environ`, moved by some seconds; see `compile_clock`."""

    def __init__(self, directory: Path, library: Path) -> None:
        self.library = library
        self._file = directory / "moved"
        self.move(0.0)
        self.environ = {"LD_PRELOAD": str(library), "TEST_CLOCK": str(self._file)}

    def move(self, seconds: float) -> None:
        """Move it by so many seconds."""
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("d", seconds))


class Faults:
    """Faults of a daemon, each of which lasts *lasts* seconds."""

    def __init__(self, daemon: Daemon, clock: MovedClock, lasts: float) -> None:
        self._daemon = daemon
        self._clock = clock
        self._lasts = lasts
        self.all: tuple[Callable[[], None], ...] = (
            self.kill_the_worker,
            self.stop_the_daemon,
            self.stop_the_worker,
            self.run_out_of_descriptors,
            self.fill_the_disk,
            self.flood,
            *(lambda by=by: self.move_the_clock(by) for by in (HOUR, -HOUR, 3 * YEAR, -3 * YEAR)),
        )

    def processes(self) -> list[psutil.Process]:
        """Return the daemon and its ingest worker."""
        pids = self._daemon.pids()
        return [psutil.Process(pids[name]) for name in ("daemon", "ingest worker") if name in pids]

    def use(self) -> tuple[float, int, int]:
        """Return MiB, descriptors and threads of the daemon and its worker."""
        both = self.processes()
        memory = sum(process.memory_info().rss for process in both) / 2**20
        return memory, sum(process.num_fds() for process in both), sum(process.num_threads() for process in both)

    def kill_the_worker(self) -> None:
        self._signal("ingest worker", signal.SIGKILL)

    def stop_the_daemon(self) -> None:
        self._signal("daemon", signal.SIGSTOP)
        self._last()
        self._signal("daemon", signal.SIGCONT)

    def stop_the_worker(self) -> None:
        self._signal("ingest worker", signal.SIGSTOP)
        self._last()
        self._signal("ingest worker", signal.SIGCONT)

    def run_out_of_descriptors(self) -> None:
        both = self.processes()
        before = [process.rlimit(psutil.RLIMIT_NOFILE) for process in both]
        for process, (_, hard) in zip(both, before, strict=True):
            process.rlimit(psutil.RLIMIT_NOFILE, (min(hard, process.num_fds()), hard))
        self.flood()
        for process, limits in zip(both, before, strict=True):
            with suppress(psutil.NoSuchProcess):  # it was replaced
                process.rlimit(psutil.RLIMIT_NOFILE, limits)

    def fill_the_disk(self) -> None:
        everything = resource.RLIM_INFINITY
        resource.prlimit(self._daemon.process.pid, resource.RLIMIT_FSIZE, (4096, everything))
        self._last()
        resource.prlimit(self._daemon.process.pid, resource.RLIMIT_FSIZE, (everything, everything))

    def flood(self) -> None:
        """Open 100 connections each of which says nothing."""
        with ExitStack() as ends:
            for _ in range(100):
                peer = ends.enter_context(socket.socket(socket.AF_UNIX))
                peer.setblocking(False)
                with suppress(OSError):
                    peer.connect(f"{self._daemon.directory}/push.sock")
            self._last()

    def move_the_clock(self, by: float) -> None:
        self._clock.move(by)
        self._last()
        self._clock.move(0.0)

    def _last(self) -> None:
        time.sleep(self._lasts)  # faults are what is waited for

    def _signal(self, name: str, number: int) -> None:
        with suppress(ProcessLookupError, KeyError):  # the worker was just replaced
            os.kill(self._daemon.pids()[name], number)


def cut(history: Path) -> None:
    """Cut the file of a history to half of its size."""
    file = history / "history.db"
    os.truncate(file, file.stat().st_size // 2)


def delete(history: Path) -> None:
    """Delete the files of a history."""
    for file in history.glob("history.db*"):
        file.unlink()
