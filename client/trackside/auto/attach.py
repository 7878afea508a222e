"""Start in a process that runs already: `trackside attach` calls this inside of it."""

from __future__ import annotations

import os

from trackside.auto.hooks import auto_run
from trackside.auto.startup.trackside_imports import watch
from trackside.auto.startup.trackside_patched_methods import PATCHED_METHODS


def begin(endpoint: str) -> str:
    """Watch the imports of the process, those that were made too, and open its run.

    Args:
        endpoint: The daemon's endpoint, unless the process has one.

    Returns:
        The run's id; empty without a run, as where trackside is turned off.
    """
    os.environ.setdefault("TRACKSIDE_ENDPOINT", endpoint)
    watch(PATCHED_METHODS)
    return auto_run().open()
