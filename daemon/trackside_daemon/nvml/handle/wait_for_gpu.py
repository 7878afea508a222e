"""Wait at start for a GPU, for a daemon that must not start without one."""

import signal
import time

from trackside_daemon.linux.signals import STOP
from trackside_daemon.nvml.handle.handle import Nvml, NvmlAbsent, NvmlUnavailable

START_SECONDS = 60.0


def wait_for_first_reading(nvml: Nvml) -> int | None:
    """Wait for the first reading; return the signal that ended the wait, or None.

    Raises:
        NvmlUnavailable: There was no reading within `START_SECONDS`, or the host has no GPU.
    """
    deadline = time.monotonic() + START_SECONDS
    problem = NvmlUnavailable("no answer")
    while time.monotonic() < deadline and not isinstance(problem, NvmlAbsent):
        try:
            nvml.read(1.0)
        except NvmlUnavailable as error:
            problem = error
        else:
            return None
        # Not sigtimedwait: when a stopped process continues, it reports signals that were never sent.
        if signal.sigpending() & set(STOP):
            return signal.sigwait(STOP)
        # While no worker runs, `read` fails at once.
        time.sleep(0.1)
    raise problem
