"""Run a script, as ``killable_script.py SCRIPT …``, and block after its first checkpoint until it is killed.

After a restart the script continues.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
from typing import Any

from trackside import default_run

event = default_run.event


def held(kind: str, /, **fields: Any) -> None:
    """Record an event, and block after the first attempt's first checkpoint."""
    event(kind, **fields)
    if kind == "checkpoint" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        threading.Event().wait()


if __name__ == "__main__":
    default_run.event = held  # as trackside.Checkpoints calls it
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
