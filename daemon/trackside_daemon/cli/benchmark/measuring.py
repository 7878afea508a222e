"""Run the processes that measure, and collect what they write."""

from __future__ import annotations

import time
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

import msgspec

from trackside.benchmark.results import Measured
from trackside.benchmark.rounds import Load
from trackside_daemon.linux.worker_call import Worker
from trackside_daemon.linux.worker_process import WorkerFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside.benchmark.request import Request

POLL_SECONDS = 0.5
END_SECONDS = 4.0  # until a process that was asked to end is killed


class _Message(msgspec.Struct):
    """A line of a process that measures."""

    load: Load | None = None
    rounds: list[dict[str, dict[str, list[float]]]] = []
    facts: dict[str, dict[str, float]] = {}
    agreement: dict[str, dict[str, dict[str, Any]]] = {}
    failed: dict[str, Any] | None = None
    note: str = ""
    end: bool = False


def run(python: str, request: Request, repeats: int, progress: Callable[[str], None]) -> tuple[Measured, str]:
    """Measure, each repeat in a process of its own.

    Args:
        python: The Python that has the packages of the target.
        request: What to measure; its mode is ignored.
        repeats: Processes that measure.
        progress: Receives a line about what happens now.

    Returns:
        What was measured, and why it ended early: empty, or in one line.
    """
    names = [spec.name for spec in request.specs]
    measured, replace = Measured(names), msgspec.structs.replace
    works = [] if request.is_endpoint else [replace(request, mode="alone", specs=[spec]) for spec in request.specs]
    works += [replace(request, mode="measure" if number else "compare") for number in range(repeats)]
    for work in works:
        subject = ", ".join(spec.name for spec in work.specs)
        try:
            ended = _work(python, work, measured, partial(_note, progress, subject))
        except WorkerFailed as error:
            measured.failed(subject, None, _death(error))
            ended = ""
        if ended:
            return measured, ended
        _leave_failed(measured, works)
    return measured, ""


def _note(progress: Callable[[str], None], subject: str, text: str) -> None:
    progress(f"{subject}: {text}")


def _leave_failed(measured: Measured, works: list[Request]) -> None:
    """Leave variants that cannot be loaded out of the later processes."""
    gone = {name for name, load, _ in measured.failures if load is None}
    for number, work in enumerate(works):
        if work.mode != "alone":
            kept = [spec for spec in work.specs if spec.name not in gone]
            works[number] = msgspec.structs.replace(work, specs=kept)


def _work(python: str, request: Request, measured: Measured, progress: Callable[[str], None]) -> str:
    """Run one process to its end; return why it ended early.

    Raises:
        WorkerFailed: It died.
    """
    if not request.specs:
        return ""
    if request.mode != "alone":
        measured.begin()
    ended, until = "", inf
    # The user's target may be in this process's working directory.
    worker = Worker("trackside.benchmark", _Message, python=python, directory=None)
    try:
        worker.begin(request)
        while time.monotonic() < until:
            try:
                message = worker.next(min(until - time.monotonic(), POLL_SECONDS))
                if message is None:
                    continue
                if message.end:
                    break
                _apply(message, measured, progress)
            except KeyboardInterrupt:
                ended = ended or "cancelled"
                until = time.monotonic() + END_SECONDS
                worker.end_input()
            except WorkerFailed:
                if ended:
                    break
                raise
    finally:
        worker.end(patience=1.0)
    return ended


def _apply(message: _Message, measured: Measured, progress: Callable[[str], None]) -> None:
    measured.facts |= message.facts
    measured.agreement |= message.agreement
    if message.load is not None:
        for values in message.rounds:
            measured.round(message.load, values)
        count = sum(map(len, measured.rounds(message.load)))
        progress(f"{message.load or 'calls'}, {count} rounds")
    if message.failed is not None:
        load = message.failed["load"]
        measured.failed(
            message.failed["name"], None if load is None else msgspec.convert(load, Load), message.failed["reason"]
        )
    if message.note:
        measured.notes.append(message.note)


def _death(error: WorkerFailed) -> str:
    if "Killed" in str(error):
        return "its process was killed, probably because memory ran out (see dmesg)"
    return f"its process ended: {error}"
