"""The signals that a daemon waits for, and those of its child processes."""

import ctypes
import os
import signal

STOP = (signal.SIGTERM, signal.SIGINT)
SIGNALS = (*STOP, signal.SIGHUP)

# Also imported by collectors/host/filesystem/remote_worker.py, which starts where memory is scarce: standard library only.

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)  # loaded here, since a forked child calls it between fork and exec


def block_signals() -> None:
    """Block `SIGNALS` for `signal.sigwait`, in this thread and in the threads and child processes that it starts later."""
    # Call this before the daemon binds anything, so that no signal ends it half started.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def reset_signals() -> None:
    """Set the handlers that a child process of the daemon needs, whatever it inherited."""
    # The daemon blocks the signals that it waits for, and a child process inherits the mask.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # A Python handler would never run inside a driver call that hangs.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Ctrl-C reaches the whole foreground group, but the daemon ends its children.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A closed pipe ends the process without a traceback.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def end_with_parent(parent: int | None, number: int) -> None:
    """Have the kernel send this process a signal when its parent dies, by prctl(2) PR_SET_PDEATHSIG.

    The kernel sends the signal when the *thread* that started this process ends. Outside Linux this has no effect.

    Args:
        parent: The process id of the parent; None to skip the check whether it is still alive.
        number: The signal.
    """
    if hasattr(_libc, "prctl"):
        # prctl is variadic and reads unsigned longs, while ctypes passes a plain number as an int.
        _libc.prctl(_PR_SET_PDEATHSIG, *map(ctypes.c_ulong, (int(number), 0, 0, 0)))
    # A parent that died before the call sends no signal.
    if parent is not None and os.getppid() != parent:
        os._exit(1)
