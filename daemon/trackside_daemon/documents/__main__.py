"""The process that writes the report of a run: ``python -m trackside_daemon.documents``.

Standard input has a `Request` as a line of JSON, and standard output its `Answer`. The daemon limits its memory. It limits
its time, and uses processors and disks only when nothing else does.
"""

from __future__ import annotations

import signal
import sqlite3
import sys
from pathlib import Path

import msgspec

from trackside_daemon.diagnosis.report import read_contents
from trackside_daemon.diagnosis.settings import CostSection
from trackside_daemon.documents.html import write
from trackside_daemon.documents.report import document
from trackside_daemon.documents.request import Answer, Request
from trackside_daemon.history.directory import HistoryError
from trackside_daemon.history.read.offline import Offline
from trackside_daemon.history.read.reader import UnknownRunError
from trackside_daemon.linux.parent_death import end_with_parent
from trackside_daemon.linux.process_limits import allowed_memory, limit_this_process
from trackside_daemon.linux.signals import reset_signals

CPU_SECONDS = 60


def main() -> int:
    """Answer one request."""
    reset_signals()
    end_with_parent(None, signal.SIGKILL)
    limit_this_process(CPU_SECONDS)
    request = msgspec.json.decode(sys.stdin.buffer.readline(), type=Request)
    sys.stdout.buffer.write(msgspec.json.encode(answer(request)) + b"\n")
    sys.stdout.buffer.flush()
    return 0


def answer(request: Request) -> Answer:
    """Write the report of a run as one HTML file, which appears when it is complete."""
    file = Path(request.file)
    try:
        history = Offline(Path(request.history), lambda _: None)
        with history.reading() as connection:
            contents = read_contents(connection, request.run, CostSection(**request.prices))
        _replace(file, write(document([contents])))
    except (HistoryError, UnknownRunError, sqlite3.Error, ValueError) as error:
        return Answer(error=str(error))
    except OSError as error:
        return Answer(error=f"{file}: {(error.strerror or str(error)).lower()}")
    except MemoryError:
        return Answer(
            error=f"the report needs more memory than the {allowed_memory() >> 20} MiB of limits.worker_memory"
        )
    return Answer()


def _replace(file: Path, text: str) -> None:
    """Write a file in one step, so that readers never see half of it."""
    unfinished = file.with_name(f".{file.name}.unfinished")
    unfinished.unlink(missing_ok=True)  # of a process that was killed
    try:
        with unfinished.open("x", encoding="utf-8") as out:
            out.write(text)
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
