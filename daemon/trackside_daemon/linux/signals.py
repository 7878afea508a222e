"""The signals that a daemon waits for."""

from __future__ import annotations

import signal

STOP = (signal.SIGTERM, signal.SIGINT)
SIGNALS = (*STOP, signal.SIGHUP)


def block_signals() -> None:
    """Block `SIGNALS` for `signal.sigwait`, in this thread and in the threads and child processes that it starts later."""
    # Call this before the daemon binds anything, so that no signal ends it half started.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
