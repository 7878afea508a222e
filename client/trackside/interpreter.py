"""The Python stacks of all threads of this process and of its forks, and a pause of its collections of garbage."""

import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from traceback import StackSummary, walk_stack

FRAMES = 64  # innermost calls that are sent of each thread's stack
STACKS_SIGNAL = signal.SIGURG  # a process without a handler ignores it, as one that calls exec just now
STACKS_FILE = "trackside-stacks-{}"  # name by the process id: a fork inherits its parent's file too


def stacks() -> dict[str, list[str]]:
    """Return the stack of each thread by its name, as lines ``FILE:LINE FUNCTION``, the innermost call last.

    This only needs the GIL, so it also shows a thread that hangs in a collective or a driver.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines = {}
    for ident, frame in sys._current_frames().items():  # noqa: SLF001  the only way to see other threads
        # The walk begins at the innermost call, so the limit cuts the outermost. Source lines are not looked up, since
        # that reads files.
        calls = StackSummary.extract(walk_stack(frame), limit=FRAMES, lookup_lines=False)
        name = f"{names.get(ident, 'thread')} {ident}"
        lines[name] = [f"{call.filename}:{call.lineno} {call.name}" for call in reversed(calls)]
    return lines


@contextmanager
def without_collection() -> Iterator[None]:
    """Turn the garbage collector off for a while: with PyTorch's objects in memory, a collection takes up to 0.1 s."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


_writes = 0  # the process that writes its stacks


def write_stacks_on_signal() -> None:
    """Let the parent of this process, which has just begun, read its stacks, also while it holds the GIL or is in a deadlock."""
    global _writes  # noqa: PLW0603
    # Without room for a file, or a kernel that has such files, there are no stacks.
    with suppress(Exception):
        is_new = _writes != os.getpid() and signal.getsignal(STACKS_SIGNAL) is signal.SIG_DFL
        if sys.platform == "linux" and is_new:
            import faulthandler  # it is built in
            import fcntl

            file = os.memfd_create(STACKS_FILE.format(os.getpid()))
            fcntl.fcntl(file, fcntl.F_SETFL, os.O_APPEND)
            faulthandler.register(STACKS_SIGNAL, file)
            _writes = os.getpid()


os.register_at_fork(after_in_child=write_stacks_on_signal)
