"""The signals that a daemon waits for; held back from before it binds anything, so that none finds it half built."""

from __future__ import annotations

import signal

STOP = (signal.SIGTERM, signal.SIGINT)
SIGNALS = (*STOP, signal.SIGHUP)


def hold() -> None:
    """From now on they wait for `signal.sigwait`; threads and child processes that are started later hold them too."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
