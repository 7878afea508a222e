"""The process that writes the report of a run: ``python -m trackside_daemon.documents``.

The daemon limits its memory. It limits its time, and uses processors and disks only when nothing else does.
"""

import sqlite3
import sys
from pathlib import Path

from trackside.os_errors import os_error_text
from trackside_daemon.diagnosis.report import read_contents
from trackside_daemon.diagnosis.settings import CostSection
from trackside_daemon.documents.experiment import write_experiment
from trackside_daemon.documents.html import write
from trackside_daemon.documents.report import document
from trackside_daemon.documents.request import ReportRequest
from trackside_daemon.history.directory import HistoryError
from trackside_daemon.history.read.offline import Offline
from trackside_daemon.history.read.reader import UnknownRunError
from trackside_daemon.linux.worker_call import WorkLimits, serve
from trackside_daemon.questions.diagnosis import SIZE

CPU_SECONDS = 60


def main() -> int:
    """Answer requests until the end of the input."""
    expected = (HistoryError, UnknownRunError, sqlite3.Error, ValueError, OSError)
    return serve(ReportRequest, write_report, lambda _: WorkLimits(CPU_SECONDS), expected)


def write_report(request: ReportRequest) -> str:
    """Write the report of a run as one HTML file, which appears when it is complete, or its directory, and return the path."""
    history = Offline(Path(request.history), lambda _: None)
    with history.reading() as connection:
        contents = read_contents(connection, request.run, CostSection(**request.prices), SIZE)
    try:
        if request.experiments:
            return str(write_experiment(history, contents, Path(request.experiments)))
        _replace(Path(request.file), write(document([contents])))
    except OSError as error:
        raise ValueError(f"{request.experiments or request.file}: {os_error_text(error)}") from None
    return request.file


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
