"""PyTorch's own profiler, as it serves the daemon: the steps that it counts, and the end of a process.

PyTorch itself records: its library libkineto polls the daemon's socket, and this client records only where it cannot.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trackside.wire import OptimizerSteps

# Minor versions. Others are left alone: 2.1 to 2.4 crash at the start (pytorch#125705), 2.7 did with CUDA (pytorch#163545).
TESTED = ("2.10", "2.13", "2.15")

BUSY = "a profiler is active in it already"  # the reason for which neither PyTorch nor the client records
SOCKET = "dynolog"  # PyTorch's name for the socket of its daemon
CONFIG = "kineto.conf"
OTHER_DAEMON = ("KINETO_USE_DAEMON", "KINETO_IPC_SOCKET_DIR")  # with one of them, the user has chosen another daemon


def socket_directory(push_socket: Path) -> Path:
    """Return the directory of the daemon's socket for PyTorch, which is next to its push socket."""
    return push_socket.with_suffix(".kineto")


def serves_this_user(directory: Path) -> bool:
    """Return whether a daemon of this user has its socket in a directory."""
    try:
        return directory.lstat().st_uid == os.getuid() and (directory / SOCKET).is_socket()
    except OSError:
        return False


def variables(directory: Path) -> dict[str, str]:
    """Return the variables with which PyTorch asks at the socket in a directory."""
    return {
        "KINETO_USE_DAEMON": "1",
        "KINETO_IPC_SOCKET_DIR": str(directory),
        "KINETO_CONFIG": str(directory / CONFIG),
        "KINETO_ONDEMAND_TRACE_DIR": str(directory),
        "KINETO_LOG_LEVEL": "99",  # otherwise each process writes some lines to standard error
    }


def is_tested(version: str) -> bool:
    """Return whether a version of PyTorch is one of those with which its profiler was tested."""
    return ".".join(version.split(".")[:2]) in TESTED


class StepCounter:
    """Counts optimizer steps in place of PyTorch's own hook, and has PyTorch count them only for a time.

    PyTorch's profiler needs its count only when it may have to record some steps, and its counter takes longer than all of this.
    """

    __slots__ = ("_counted", "_skipped", "_until")

    def __init__(self) -> None:
        self._skipped = self._counted = 0
        self._until = 0.0

    def hook(self, count: Callable[[], object]) -> Callable[[Any, Any, Any], None]:
        """Return the hook after each optimizer step; *count* is PyTorch's counter."""

        def step(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if self._until:
                count()
                self._counted += 1
            else:
                self._skipped += 1

        step._torchdynamo_disable = True  # type: ignore[attr-defined]  # noqa: SLF001  not to be compiled at each step
        return step

    def ask(self, seconds: float) -> tuple[int, int]:
        """Return the numbers of steps that PyTorch has not counted and that it has; it counts those of the next *seconds*."""
        self._until = max(self._until, time.monotonic() + seconds)
        return self._skipped, self._counted

    def expire(self) -> None:
        """Have PyTorch count no more if that time is over; to be called by the thread that asks."""
        if self._until < time.monotonic():
            self._until = 0.0


step_counter = StepCounter()


def count_cheaply() -> bool:
    """Replace the hook by which PyTorch counts optimizer steps for its daemon; see `StepCounter`.

    Returns:
        Whether there is nothing left to do: the hook is replaced, or this process has none.
    """
    if not os.environ.get("KINETO_USE_DAEMON"):
        return True
    with suppress(Exception):  # PyTorch is not there yet, or this part of it has changed
        torch, optimizer = sys.modules["torch"], sys.modules["torch.optim.optimizer"]
        hooks, count = optimizer._global_optimizer_post_hooks, torch.autograd.profiler._kineto_step  # noqa: SLF001
        for key, hook in list(hooks.items()):
            if hook is torch.profiler._optimizer_post_hook:  # noqa: SLF001
                hooks[key] = step_counter.hook(count)  # the same key, since the training may iterate over them now
                return True
    return False


def optimizer_steps(seconds: float) -> OptimizerSteps:
    """Return the optimizer steps of this process, if its environment names a daemon for profiles.

    PyTorch's profiler counts those of the next *seconds*.
    """
    from trackside.wire import OptimizerSteps  # of which the ingest worker, which imports this, needs nothing

    with suppress(Exception):  # PyTorch is not there, or this part of it has changed
        tracked = sys.modules["torch.autograd.profiler"].KinetoStepTracker.current_step()
        skipped, counted = step_counter.ask(seconds)
        return OptimizerSteps(skipped + counted + max(0, tracked), skipped)
    return OptimizerSteps()


_ending = [0]  # the process that ends, by its id: a forked child has another one


def is_ending() -> bool:
    """Return whether this process ends, so that no recording may begin."""
    return _ending[0] == os.getpid()


def cancel_recording() -> None:
    """Cancel what is recorded of this process, which ends; otherwise its end crashes it (SIGSEGV in PyTorch 2.10 to 2.15).

    It takes a millisecond. A recording has a file that PyTorch renames at its end.
    """
    _ending[0] = os.getpid()
    if (own := sys.modules.get("trackside.captures.profiler")) is not None:
        own.cancel()
    directory, torch = os.environ.get("KINETO_IPC_SOCKET_DIR"), sys.modules.get("torch")
    if not directory or torch is None:
        return
    with suppress(Exception):  # the end of a training must not fail
        from pathlib import Path  # the client has imported it, and the ingest worker needs none

        if any(Path(directory).glob(f"*/trace_*_{os.getpid()}.json.tmp")):
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
                pass  # a profile of the process's own cancels all others
