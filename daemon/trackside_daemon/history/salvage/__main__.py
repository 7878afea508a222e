"""The process that looks for damage and salvages rows: ``python -m trackside_daemon.history.salvage``.

Standard input has a `Request` as a line of JSON, and standard output its `Answer`. The daemon limits its memory. It looks for
damage only while processors and disks are free, and salvages at once, since nothing can be stored meanwhile.
"""

from __future__ import annotations

import signal
import sqlite3
import sys
import time
from pathlib import Path

import msgspec

from trackside_daemon.history.salvage.check import find_damage
from trackside_daemon.history.salvage.salvage import salvage
from trackside_daemon.history.salvage.worker import Answer, Request
from trackside_daemon.linux.parent_death import end_with_parent
from trackside_daemon.linux.process_limits import limit_this_process
from trackside_daemon.linux.signals import reset_signals


def main() -> int:
    """Answer one request."""
    reset_signals()
    end_with_parent(None, signal.SIGKILL)
    request = msgspec.json.decode(sys.stdin.buffer.readline(), type=Request)
    limit_this_process(quick_seconds=request.seconds)
    sys.stdout.buffer.write(msgspec.json.encode(_answer(request)) + b"\n")
    sys.stdout.buffer.flush()
    return 0


def _answer(request: Request) -> Answer:
    source = Path(request.source)
    try:
        if not request.target:
            return Answer(damage=find_damage(source))
        return Answer(salvaged=salvage(source, Path(request.target), time.monotonic() + request.seconds))
    except (OSError, ValueError, sqlite3.Error, MemoryError) as error:
        return Answer(error=str(error) or type(error).__name__)


if __name__ == "__main__":
    sys.exit(main())
