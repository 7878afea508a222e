"""PyTorch's own profiler, as it serves the daemon: the steps that it counts, and the end of a process."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from trackside.wire import OptimizerSteps


def optimizer_steps() -> OptimizerSteps:
    """Return the optimizer steps of this process, which PyTorch counts if its environment names a daemon for profiles."""
    with suppress(Exception):  # PyTorch is not there, or this part of it has changed
        return OptimizerSteps(max(0, sys.modules["torch.autograd.profiler"].KinetoStepTracker.current_step()))
    return OptimizerSteps()


def cancel_recording() -> None:
    """Cancel what the daemon has PyTorch record; otherwise the end of the process crashes it (SIGSEGV in PyTorch 2.10 to 2.15).

    It takes a millisecond. A recording has a file that PyTorch renames at its end.
    """
    directory, torch = os.environ.get("KINETO_IPC_SOCKET_DIR"), sys.modules.get("torch")
    if not directory or torch is None:
        return
    with suppress(Exception):  # the end of a training must not fail
        if any(Path(directory).glob(f"*/trace_*_{os.getpid()}.json.tmp")):
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
                pass  # a profile of the process's own cancels all others
