"""The wait for a GPU, for a daemon that is not to start without one."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from trackside_daemon.linux.signals import STOP
from trackside_daemon.nvml.handle.handle import NvmlAbsent, NvmlUnavailable

if TYPE_CHECKING:
    from trackside_daemon.nvml.handle.handle import Nvml

START_SECONDS = 60.0


def first_reading(nvml: Nvml) -> int | None:
    """Wait for the first reading, or for a signal that ends the waiting, which is returned.

    Raises:
        NvmlUnavailable: There is none.
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
        if signal.sigpending() & set(
            STOP
        ):  # sigtimedwait tells of signals that never came, when a stopped process goes on
            return signal.sigwait(STOP)
        time.sleep(0.1)
    raise problem
