"""State that all runs of one process share, made anew within a process that runs many tests."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from trackside import default_run
from trackside.process_state import ProcessState

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def client_process() -> Iterator[ProcessState]:
    """Replace the state of all runs by a new one, which ends with its senders and without a flush."""
    process = ProcessState()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(default_run, "_process", process)
        patch.setattr(default_run._default_run, "queue", default_run._default_queue)
        patch.setattr(sys, "excepthook", sys.excepthook)
        yield process
        patch.setenv("TRACKSIDE_FLUSH_TIMEOUT", "0")
        process.exit()
