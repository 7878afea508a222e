"""The processes of a command with all that it has started, on this machine: whether they do anything, and their end."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

STARVED_SHARE = 0.1  # of the time, from which on a main thread that waits for a CPU is busy
CPU_SHARE = 0.05  # of a core, from which on a process is busy; the threads of the client need a hundredth of it
POLL_SECONDS = 0.2  # between two looks whether they are to be left alone
WAKES = 2.0  # per second, from which on a main thread gets something, such as data of a socket; polls are rarer
IO_BYTES = 13_000  # read and written per second, from which on a process is busy; trackers need half of it


class Activity(NamedTuple):
    """Resources that a process has used until now."""

    cpu: float  # CPU seconds, in user and kernel mode
    io: int = 0  # bytes read and written, by calls and as mapped files, of /proc/PID/io; 0 if it may not be read
    wakes: int = 0  # how often its main thread has waited for something that came
    # Seconds for which its main thread had work and got no CPU, of /proc/PID/schedstat; 0 if unknown.
    starved: float = 0.0


class JobProcesses:
    """The processes of a command: its descendants, and what has its launch in its environment.

    A process whose parent has ended is no descendant any more, and one that sets its title may have overwritten its
    environment.

    Args:
        root: Process id of the command.
        launch: Value of ``$TRACKSIDE_LAUNCH`` in its environment.
        others: Process ids that are none of its processes, whatever their environment.
    """

    def __init__(self, root: int, launch: str, others: Collection[int] = ()) -> None:
        self._root, self._launch = root, launch
        self._others = frozenset({*others, os.getpid()})

    def find(self) -> list[psutil.Process]:
        """Return them, without zombies."""
        found: dict[int, psutil.Process] = {}
        with suppress(psutil.Error):
            root = psutil.Process(self._root)
            found = {one.pid: one for one in (root, *root.children(recursive=True))}
        for one in psutil.process_iter():
            with suppress(psutil.Error, OSError):  # it has ended, or is another user's
                if one.pid not in found and one.environ().get("TRACKSIDE_LAUNCH") == self._launch:
                    found[one.pid] = one
        return [one for one in found.values() if one.pid not in self._others and _lives(one)]

    def send(self, number: int) -> list[psutil.Process]:
        """Send all of them a signal, and return them."""
        found = self.find()
        for one in found:
            with suppress(psutil.Error):
                one.send_signal(number)
        return found

    def end(self, seconds: float, given_up: Callable[[], object] = lambda: False) -> None:
        """End those that are left: they may hold GPU memory, ports and files. After so many seconds they are killed.

        *given_up* tells that they may stay, which is asked again and again.
        """
        for number in (signal.SIGTERM, signal.SIGKILL):
            left = [] if given_up() else self.send(number)
            until = time.monotonic() + seconds
            while left and not given_up() and time.monotonic() < until:
                _, left = psutil.wait_procs(left, timeout=POLL_SECONDS)


def is_paused(process: psutil.Process) -> bool:
    """Return whether a debugger is attached to a process, or a signal has stopped it."""
    with suppress(psutil.Error, OSError):
        lines = Path(f"/proc/{process.pid}/status").read_text(errors="replace").splitlines()
        is_traced = any(line.startswith("TracerPid:") and int(line.split()[1]) for line in lines)
        return is_traced or process.status() == psutil.STATUS_STOPPED
    return False


def with_children(processes: Collection[psutil.Process]) -> dict[int, psutil.Process]:
    """Return processes and their descendants, by process id."""
    found = {one.pid: one for one in processes}
    for one in processes:
        with suppress(psutil.Error):
            found |= {child.pid: child for child in one.children(recursive=True)}
    return found


def activity(process: psutil.Process) -> Activity | None:
    """Return what a process has used; None if it has ended."""
    try:
        cpu = process.cpu_times()
        used = Activity(cpu.user + cpu.system, wakes=process.num_ctx_switches().voluntary)
        with suppress(OSError, IndexError):  # it ends, or the kernel does not count
            starved = Path(f"/proc/{process.pid}/schedstat").read_text().split()[1]
            used = used._replace(starved=int(starved) / 1e9)
        with suppress(psutil.Error, OSError):
            return used._replace(io=sum(process.io_counters()[2:]))
        return used
    except psutil.Error:
        return None


def busy(before: Activity | None, after: Activity | None, seconds: float) -> bool:
    """Return whether a process has done something within so many seconds; one that has begun or ended has."""
    if before is None or after is None:
        return before is not after
    return (
        after.cpu - before.cpu >= CPU_SHARE * seconds
        or after.starved - before.starved >= STARVED_SHARE * seconds
        or after.io - before.io >= IO_BYTES * seconds
        or after.wakes - before.wakes >= WAKES * seconds
    )


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
