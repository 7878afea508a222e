"""Run the processes that measure, collect what they find, and name what disturbed them."""

from __future__ import annotations

import time
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from trackside.benchmark.messages import Failure, Finding
from trackside.benchmark.results import Measured
from trackside_daemon.cli.sources.errors import SourceError
from trackside_daemon.history.series_name import series_labels
from trackside_daemon.linux.worker_call import Worker
from trackside_daemon.linux.worker_process import WorkerFailed
from trackside_daemon.model.families import gpu, host
from trackside_daemon.model.text import percent
from trackside_daemon.questions.series import Series

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trackside.benchmark.messages import Request
    from trackside_daemon.cli.sources.api_source import ApiSource
    from trackside_daemon.model.metric import Metric

POLL_SECONDS = 0.5
END_SECONDS = 4.0  # until a process that was asked to end is killed


class Disturbance(NamedTuple):
    """A family that shows one.

    Attributes:
        family: Counter of seconds, or gauge.
        share: Share of the time, or value of a gauge, above which it disturbs.
        text: What to report; ``{}`` is the percentage or the value.
    """

    family: Metric
    share: float
    text: str


HARMLESS = frozenset(("gpu_idle", "applications_clocks", "sw_power_cap", "sync_boost", "display"))
DISTURBANCES = (
    Disturbance(host.CPU_WAITING, 0.1, "tasks waited for a CPU in {} of the time"),
    Disturbance(host.MEMORY_STALLED, 0.01, "all tasks waited for memory in {} of the time"),
    Disturbance(host.IO_STALLED, 0.1, "all tasks waited for storage in {} of the time"),
    Disturbance(gpu.CLOCK_LIMITED, 0.01, "the clocks of a GPU were limited in {} of the time"),
    Disturbance(gpu.PROCESSES, 1, "{} processes shared a GPU"),
)


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
    measured = Measured([spec.name for spec in request.specs])
    works = [] if request.is_endpoint else [replace(request, mode="alone", specs=[spec]) for spec in request.specs]
    works += [replace(request, mode="measure" if number else "compare") for number in range(repeats)]
    for work in works:
        gone = {failure.variant for failure in measured.failures if failure.load is None}
        specs = [spec for spec in work.specs if spec.name not in gone]
        subject = ", ".join(spec.name for spec in specs)
        if specs and (ended := _work(python, replace(work, specs=specs), measured, subject, progress)):
            return measured, ended
    return measured, ""


def _work(python: str, request: Request, measured: Measured, subject: str, progress: Callable[[str], None]) -> str:
    """Run one process to its end; return why it ended early."""
    measured.begin()
    ended, until, rounds = "", inf, 0
    # The user's target may be in this process's working directory.
    worker = Worker("trackside.benchmark", Finding, python=python, directory=None)
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
            measured.add(Finding(failed=Failure(subject, None, _death(error))))
    finally:
        worker.end(patience=1.0)
    return ended


def _death(error: WorkerFailed) -> str:
    if "Killed" in str(error):
        return "its process was killed, probably because memory ran out (see dmesg)"
    return f"its process ended: {error}"


def disturbances(daemon: ApiSource, run: str, begun: float, ended: float) -> list[str] | None:
    """Return in a line each what disturbed a measurement between two Unix times; None if the daemon does not answer."""
    keys = tuple(one.family.name for one in DISTURBANCES)
    try:
        series = daemon.ask(Series(run=(run,), key=keys, by="time", first=begun, last=ended))["series"]
    except SourceError:
        return None
    return [text for one in DISTURBANCES if (text := _text(one, series, ended - begun))]


def _text(disturbance: Disturbance, series: Sequence[dict[str, Any]], seconds: float) -> str:
    values = [
        points
        for one in series
        if one["key"].partition("{")[0] == disturbance.family.name
        and series_labels(one["key"]).get("reason") not in HARMLESS
        and (points := one["points"])
    ]
    if disturbance.family.kind == "counter":
        highest = max((points[-1][4] - points[0][2] for points in values), default=0.0) / max(seconds, 1.0)
        return disturbance.text.format(percent(min(1.0, highest))) if highest > disturbance.share else ""
    highest = max((point[3] for points in values for point in points), default=0.0)
    return disturbance.text.format(f"{highest:g}") if highest > disturbance.share else ""
