"""The process that looks for damage and salvages rows: ``python -m trackside_daemon.history.salvage``.

The daemon limits its memory. It looks for damage only while processors and disks are free, and salvages at once, since nothing
can be stored meanwhile.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from pathlib import Path

from trackside_daemon.history.salvage.check import find_damage
from trackside_daemon.history.salvage.salvage import Salvaged, SalvageRequest, salvage
from trackside_daemon.linux.worker_call import WorkLimits, serve


def main() -> int:
    """Answer requests until the end of the input."""
    return serve(
        SalvageRequest,
        _answer,
        lambda request: WorkLimits(quick_seconds=request.seconds),
        (OSError, ValueError, sqlite3.Error),
    )


def _answer(request: SalvageRequest) -> str | Salvaged:
    if not request.target:
        return find_damage(Path(request.source))
    return salvage(Path(request.source), Path(request.target), time.monotonic() + request.seconds)


if __name__ == "__main__":
    sys.exit(main())
