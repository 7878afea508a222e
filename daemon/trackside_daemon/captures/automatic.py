"""Captures that no person asks for: planned ones, of a healthy run once, and when it becomes slow, loses memory or diverges.

Those of slow runs, and of memory, are compared with the healthy ones.
"""

import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf

from trackside.log_once import LogOnce
from trackside.wire import ProfilePlan
from trackside_daemon.captures.captures import CaptureError, CaptureRequest
from trackside_daemon.captures.kinds.by_name import BY_NAME
from trackside_daemon.model.capture import AlertLink, Capture, CaptureBody, KindName, ProfileOptions
from trackside_daemon.model.families.training import KNOWN, MEMORY, STEPS
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.rank_process import RankProcess
from trackside_daemon.model.records import Alert, AlertNote
from trackside_daemon.model.state import State
from trackside_daemon.model.text import ranges

SLOW = ("SlowStep", "ThroughputRegression", "StragglerRank", "GpuUnderutilized", "DataLoaderBottleneck")
FULL = ("HostMemoryLeak", "GpuMemoryLeak")
UNSTABLE = ("NonFinite", "LossSpike", "LossDiverging", "GradientExplosion", "GradientVanishing")
KINDS: dict[str, KindName] = {  # of the capture, by its cause
    **dict.fromkeys(SLOW, "profile"),
    **dict.fromkeys(FULL, "memory"),
    **dict.fromkeys(UNSTABLE, "layers"),
}
OUT_OF_MEMORY = "DeviceOutOfMemory"  # the cause that is no alert: a training that goes on counts it
AGAIN_SECONDS = 900.0  # least time between two captures of a run for one cause
# Time from a run's first tick to its reference: compilation, caches and data loaders have settled.
WARM_UP_SECONDS = 120.0
REFERENCES: tuple[KindName, ...] = ("profile", "memory")  # in this order, the second *APART_SECONDS* later
APART_SECONDS = 60.0
MAX_RUNS = 1024  # most runs that are remembered
MAX_CHANGES = 5  # changes that an alert gets

MAX_NOTED_RUNS = 1024  # most runs whose plan the log names

log = logging.getLogger("trackside")


class AutomaticCaptures:
    """Listener of the alerts in `KINDS` in the pipeline's thread, which never blocks, and of ticks.

    Args:
        begin: Begins a capture.
        processes: Returns the training processes of this machine.
        state: The newest values.
        observes: Returns whether a run, by its id, measures its layers.
        clock: Monotonic clock, in seconds.
    """

    def __init__(
        self,
        begin: Callable[[CaptureRequest], Capture],
        processes: Callable[[], Iterable[RankProcess]],
        state: State,
        *,
        observes: Callable[[str], bool] = lambda _: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._begin_capture = begin
        self._processes = processes
        self._state = state
        self._observes = observes
        self._clock = clock
        self._captured: OrderedDict[tuple[str, str], float] = OrderedDict()  # when, by run and cause
        self._firing: dict[str, set[tuple[str, float]]] = {}
        self._healthy: OrderedDict[str, tuple[float, int]] = OrderedDict()  # since when, and its references, by run
        self._exhausted: dict[str, float] = {}  # failed allocations on GPUs, by the name of the run

    def accept(self, batch: Batch) -> None:
        """Record each run for which one of the alerts begins."""
        for record in batch.records:
            if not isinstance(record, Alert) or record.alert not in KINDS or not record.run:
                continue
            key = record.alert, record.started
            firing = self._firing.setdefault(record.run, set())
            if record.ended is not None:
                firing.discard(key)
            elif key not in firing:
                if record.alert not in UNSTABLE:  # with those, its speed can be healthy
                    firing.add(key)
                cause = AlertLink(record.alert, record.started, dict(record.labels))
                self._begin(record.run, KINDS[record.alert], cause)

    def tick(self) -> None:
        """Record references of each run that has been healthy since its warm-up, and the memory of one that has run out of it."""
        runs = {process.run_id: process.run for process in self._processes()}
        now = self._clock()
        for run in runs:
            since, taken = self._healthy.setdefault(run, (now, 0))
            if self._firing.get(run):
                self._healthy[run] = now, taken
            elif taken < len(REFERENCES) and now - since >= WARM_UP_SECONDS + taken * APART_SECONDS:
                self._healthy[run] = since, taken + 1
                self._begin(run, REFERENCES[taken], None)
        for ended in (self._healthy.keys() | self._firing.keys()) - runs.keys():
            self._healthy.pop(ended, None)
            self._firing.pop(ended, None)
        self._record_exhausted(runs)

    def _record_exhausted(self, runs: Mapping[str, str]) -> None:
        (counts,) = self._state.values(time.monotonic(), MEMORY["out_of_memory"])
        failures: dict[str, float] = {}
        for (name, *_), count in counts.items():
            failures[name] = failures.get(name, 0.0) + float(count)  # type: ignore[arg-type]  # a counter
        for run, name in runs.items():
            if failures.get(name, 0.0) > self._exhausted.get(name, failures.get(name, 0.0)):
                self._begin(run, "memory", AlertLink(OUT_OF_MEMORY, time.time(), {"run": name}))
        self._exhausted = failures

    def _begin(self, run: str, kind: KindName, link: AlertLink | None) -> None:
        now = self._clock()
        cause = kind if link is None else link.alert
        if kind == "layers" and not self._observes(run):
            return
        if now - self._captured.get((run, cause), -AGAIN_SECONDS) < AGAIN_SECONDS:
            return
        self._captured[run, cause] = now
        if len(self._captured) > MAX_RUNS:
            self._captured.popitem(last=False)
        attempt = next((process.attempt for process in self._processes() if process.run_id == run), 0)
        try:
            self._begin_capture(
                CaptureRequest(run, attempt, kind, trigger="alert", options=CaptureBody(kind).options(), cause=link)
            )
        except CaptureError as error:
            log.info("run %s is not recorded for %s: %s", run, cause, error)


def compare(
    capture: Capture, stored: Callable[[], Sequence[Capture]], publish: Callable[[Batch], object]
) -> list[Capture]:
    """Return a capture with what changed since the reference; a reference with the earlier captures that it serves.

    Alerts get what has changed, too. The reference of a snapshot of memory is the one before.

    Args:
        capture: A capture that was summarised.
        stored: Returns all captures that the history has, oldest first.
        publish: Receives batches of records.
    """
    others = [one for one in stored() if _is_comparable(one, capture)]
    if is_reference(capture):
        late = [one for one in others if one.cause is not None and "difference" not in one.summary]
        return [capture, *(_compared(one, capture, publish) for one in late if one.kind == "profile")]
    references = [one for one in others if one.kind == "memory" or is_reference(one)]
    return [_compared(capture, references[-1] if references else None, publish)]


def _is_comparable(one: Capture, capture: Capture) -> bool:
    return (
        (one.run, one.kind, one.options.stacks) == (capture.run, capture.kind, capture.options.stacks)
        and BY_NAME[one.kind].is_compared
        and one.state == "summarised"
        and one.id != capture.id
    )


def _compared(capture: Capture, reference: Capture | None, publish: Callable[[Batch], object]) -> Capture:
    kind = BY_NAME[capture.kind]
    if reference is not None:
        changes = kind.difference(reference.summary, capture.summary)
        capture = replace(capture, summary={**capture.summary, "difference": changes, "reference": reference.id})
    if capture.cause is not None and kind.changes:
        texts = [change["text"] for change in capture.summary.get(kind.changes, ())][:MAX_CHANGES]
        evidence = {"capture": {"id": capture.id, "changes": texts}}
        link = capture.cause
        publish(Batch("captures", records=[AlertNote(link.alert, link.started, capture.run, link.labels, evidence)]))
    return capture


def is_reference(capture: Capture) -> bool:
    """Return whether a profile shows a healthy run."""
    return (capture.trigger, capture.cause, capture.kind, capture.state) == ("alert", None, "profile", "summarised")


class PlannedCaptures:
    """Begins the profiles that are due, at each tick. The lowest rank of this machine decides for its run.

    Args:
        begin: Begins a capture.
        processes: Returns the training processes of this machine.
        state: The newest values.
        default: The plan of runs without one of their own; None for none.
        of_others: Follow the plans of other users' runs as well.
    """

    def __init__(
        self,
        begin: Callable[[CaptureRequest], Capture],
        processes: Callable[[], Iterable[RankProcess]],
        state: State,
        default: ProfilePlan | None,
        *,
        of_others: bool = False,
    ) -> None:
        self._begin_capture = begin
        self._processes = processes
        self._state = state
        self._default = default
        self._of_others = of_others
        self._refused = LogOnce(MAX_NOTED_RUNS)
        self._plans: dict[tuple[str, int], tuple[str, ProfilePlan]] = {}  # of the runs that live, with their names
        # Steps when an epoch of the plan had begun, by run, attempt and epoch; None once profiled, infinity if missed.
        self._begun: dict[tuple[str, int], dict[int, float | None]] = {}

    def tick(self) -> None:
        """Begin what is due."""
        first: dict[tuple[str, int], RankProcess] = {}
        for process in self._processes():
            key = process.run_id, process.attempt
            if key not in first or process.rank < first[key].rank:
                first[key] = process
        for key in self._plans.keys() - first.keys():
            self._log_missed(*self._plans.pop(key), self._begun[key])
        self._begun = {key: self._begun.get(key, {}) for key in first}
        for key, process in first.items():
            plan = self._plan(process)
            if plan is not None:
                self._plans[key] = process.run, plan
            if plan is not None and self._is_due(plan, process, self._begun[key]):
                options = ProfileOptions(plan.steps, None, plan.shapes, plan.stacks, plan.memory)
                try:
                    self._begin_capture(
                        CaptureRequest(process.run_id, process.attempt, trigger="plan", options=options)
                    )
                except CaptureError as error:
                    log.info("run %s is not profiled as planned: %s", process.run, error)

    @staticmethod
    def _log_missed(run: str, plan: ProfilePlan, begun: Mapping[int, float | None]) -> None:
        """Name what a run that has ended did not reach."""
        if missed := [one for one in plan.epochs or (0,) if begun.get(one, inf) is not None]:
            what = f"epoch{'s' if len(missed) > 1 else ''} {ranges(missed)}" if plan.epochs else f"step {plan.warmup}"
            text = "run %s has no profile of %s, as its plan has it: the run ended before, or the epoch lasted less than a second"
            log.warning(text, run, what)

    def _plan(self, process: RankProcess) -> ProfilePlan | None:
        """Return the plan of a run: its own, since a profile costs this daemon's memory, only of this daemon's own user."""
        if process.plan is None or self._of_others or process.owner == f"uid:{os.getuid()}":
            return process.plan or self._default
        if self._refused.first(process.run_id):
            log.info(
                "run %s is not profiled as it plans: it is of another user; capture.plans: all allows that", process.run
            )
        return self._default

    def _is_due(self, plan: ProfilePlan, process: RankProcess, begun: dict[int, float | None]) -> bool:
        labels = process.run, str(process.rank)
        steps, epoch = self._state.some(time.monotonic(), [(STEPS, labels), (KNOWN["epoch"], labels)])
        if not isinstance(steps, float | int):
            return False
        if not plan.epochs:
            begun.setdefault(0, 0.0)
        elif isinstance(epoch, float | int):
            for planned in plan.epochs:
                if epoch >= planned:
                    begun.setdefault(planned, inf if epoch >= planned + 1 else steps)
        due = [planned for planned, at in begun.items() if at is not None and steps >= at + plan.warmup]
        begun.update(dict.fromkeys(due))
        return bool(due)
