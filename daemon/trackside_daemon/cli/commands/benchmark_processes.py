"""Run the processes that measure, collect what they find, and name what disturbed them."""

from __future__ import annotations

import time
from math import inf
from typing import TYPE_CHECKING

from msgspec.structs import replace

from trackside.benchmark.messages import Failure, ProcessAnswer
from trackside.benchmark.results import Measurements
from trackside_daemon.cli.sources.source import SourceError
from trackside_daemon.history.series_name import series_labels
from trackside_daemon.linux.worker_call import CallWorker
from trackside_daemon.linux.worker_process import WorkerFailed
from trackside_daemon.model.families import gpu, host
from trackside_daemon.model.text import percent
from trackside_daemon.questions.series import Series

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside.benchmark.messages import ProcessRequest
    from trackside_daemon.cli.sources.api_source import ApiSource
    from trackside_daemon.model.metric import Metric

POLL_SECONDS = 0.5
END_SECONDS = 4.0  # until a process that was asked to end is killed

HARMLESS = frozenset(("gpu_idle", "applications_clocks", "sw_power_cap", "sync_boost", "display"))
DISTURBANCES: dict[Metric, tuple[float, str]] = {
    host.CPU_WAITING: (0.1, "tasks waited for a CPU in {} of the time"),
    host.MEMORY_STALLED: (0.01, "all tasks waited for memory in {} of the time"),
    host.IO_STALLED: (0.1, "all tasks waited for storage in {} of the time"),
    gpu.CLOCK_LIMITED: (0.01, "the clocks of a GPU were limited in {} of the time"),
    gpu.PROCESSES: (1, "{} processes shared a GPU"),
}
"""By family: the share of the time of a counter of seconds, or the value of a gauge, above which it disturbs; and how."""


def run(
    python: str, repeats: int, progress: Callable[[str], None], request: ProcessRequest
) -> tuple[Measurements, str]:
    """Measure, each repeat in a process of its own.

    Args:
        python: The Python that has the packages of the target.
        repeats: Processes that measure.
        progress: Receives a line about what happens now.
        request: What to measure; its mode is ignored.

    Returns:
        What was measured, and why it ended early: empty, or in one line.
    """
    measured = Measurements([spec.name for spec in request.specs])
    works = (
        [] if request.specs[0].is_endpoint else [replace(request, mode="alone", specs=[spec]) for spec in request.specs]
    )
    works += [replace(request, mode="measure" if number else "compare") for number in range(repeats)]
    for work in works:
        gone = {failure.variant for failure in measured.failures if failure.load is None}
        specs = [spec for spec in work.specs if spec.name not in gone]
        subject = ", ".join(spec.name for spec in specs)
        if specs and (ended := _work(python, replace(work, specs=specs), measured, subject, progress)):
            return measured, ended
    return measured, ""


def _work(
    python: str, request: ProcessRequest, measured: Measurements, subject: str, progress: Callable[[str], None]
) -> str:
    """Run one process to its end; return why it ended early."""
    measured.begin()
    ended, until, rounds = "", inf, 0
    # The user's target may be in this process's working directory.
    worker = CallWorker("trackside.benchmark", ProcessAnswer, python=python, directory=None)
    try:
        worker.begin(request)
        while time.monotonic() < until:
            try:
                finding = worker.next(min(until - time.monotonic(), POLL_SECONDS))
                if finding is not None and finding.end:
                    break
                if finding is not None:
                    measured.add(finding)
                    rounds += len(finding.rounds)
                    progress(f"{subject}: {finding.load or 'calls'}, {rounds} rounds")
            except KeyboardInterrupt:
                ended = ended or "cancelled"
                until = time.monotonic() + END_SECONDS
                worker.end_input()
    except WorkerFailed as error:
        if not ended:
            measured.add(ProcessAnswer(failed=Failure(subject, None, _death(error))))
    finally:
        worker.end(patience=1.0)
    return ended


def _death(error: WorkerFailed) -> str:
    if "Killed" in str(error):
        return "its process was killed, probably because memory ran out (see dmesg)"
    return f"its process ended: {error}"


def disturbances(daemon: ApiSource, run: str, begun: float, ended: float, *, gpus: bool = True) -> list[str] | None:
    """Return in a line each what disturbed a measurement between two Unix times; None if the daemon does not answer.

    Without *gpus* the targets ran on processors, and what GPUs did is left out.
    """
    keys = tuple(family.name for family in DISTURBANCES)
    try:
        series = daemon.ask(Series(run=(run,), key=keys, by="time", first=begun, last=ended, missing="ignore"))[
            "series"
        ]
    except SourceError:
        return None
    found = []
    for family, (most, text) in DISTURBANCES.items():
        if not gpus and family in {gpu.CLOCK_LIMITED, gpu.PROCESSES}:
            continue
        values = [one["points"] for one in series if _shows(one["key"], family) and one["points"]]
        if family.kind == "counter":
            increase = max((points[-1][4] - points[0][2] for points in values), default=0.0)
            highest = increase / max(ended - begun, 1.0)
        else:
            highest = max((point[3] for points in values for point in points), default=0.0)
        if highest > most:
            found.append(text.format(percent(min(1.0, highest)) if family.kind == "counter" else f"{highest:g}"))
    return found


def _shows(key: str, family: Metric) -> bool:
    return key.partition("{")[0] == family.name and series_labels(key).get("reason") not in HARMLESS
