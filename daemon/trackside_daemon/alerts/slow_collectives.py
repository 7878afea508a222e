"""Alerts about slow collectives, from what NCCL's Inspector measures, with the run and the rank on the GPU.

The numbers come from text files or over OTLP: see `trackside_daemon.detectors.collectives` for the verdicts.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from socket import gethostname

from trackside_daemon.alerts.rules.evaluation import TICK, run_id_of
from trackside_daemon.alerts.rules.vector import FamilyValues
from trackside_daemon.detectors.collectives import EVERY, Operation, SlowCollective, SlowCollectives
from trackside_daemon.model.families import foreign, gpu, process
from trackside_daemon.model.families.training import LOST, RUN_INFO
from trackside_daemon.model.finding import Finding
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import Alert
from trackside_daemon.model.state import State
from trackside_daemon.model.troubles import TROUBLES

ALERT = "CollectiveSlow"
PAUSES = ("eval", "checkpoint")  # causes of lost time in which the training stands still, and operations differ
KEPT_SECONDS = 600.0  # within which a restored alert must be found again; otherwise it ends


class CollectiveAlerts:
    """Finding source of `CollectiveSlow`.

    Args:
        state: Newest values of all families.
        slower: How many times slower than usual is slow.
        clock: Monotonic clock, in seconds, which the state uses too.
        wall: Unix time, in seconds, for the findings.
        host: The name of this machine, whose GPUs the state has.
    """

    def __init__(
        self,
        state: State,
        slower: float,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        host: str = "",
    ) -> None:
        self._state = state
        self._clock = clock
        self._wall = wall
        self._host = (host or gethostname()).partition(".")[0]
        self._detector = SlowCollectives(slower)
        self._due = 0.0
        self._firing: dict[tuple[str, ...], Finding] = {}
        self._restored: dict[tuple[str, ...], float] = {}
        self._pids: dict[Operation, str] = {}
        self._lost: dict[tuple[str, ...], float] = {}

    def restore(self, alert: Alert) -> None:
        """Continue an alert that fired when an earlier daemon ended, until it is found again or `KEPT_SECONDS` are over."""
        if alert.alert != ALERT:
            return
        subject = _subject(alert.labels, str(alert.evidence.get("kind", "")))
        self._firing[subject] = alert.as_finding(alert.started)
        self._restored[subject] = self._clock() + KEPT_SECONDS

    def accept(self, batch: Batch) -> list[Finding]:
        """Return what begins and what ends with a tick, each half minute."""
        now = self._clock()
        if batch.source != TICK or now < self._due:
            return []
        self._due = now + EVERY
        bandwidths = self._bandwidths(now)
        if self._pauses(now) or (not bandwidths and not self._firing):
            return []
        return list(self._changes(now, {one.subject: one for one in self._detector.update(now, bandwidths)}))

    def _pauses(self, now: float) -> bool:
        """Return whether all runs of this machine evaluated or saved for half of the time since the last tick.

        Ranks evaluate different amounts, and wait for each other in operations as those of the training.
        """
        (lost,) = self._state.values(now, LOST)
        before, self._lost = self._lost, {labels: value for labels, value in lost.items() if isinstance(value, float)}
        grown = {of for of, value in self._lost.items() if value - before.get(of, 0.0) > EVERY / 2}
        paused = {run for run, _, cause in grown if cause in PAUSES}
        return bool(paused) and paused == {run for run, *_ in self._lost}

    def _bandwidths(self, now: float) -> dict[Operation, float]:
        found: dict[Operation, float] = {}
        self._pids = {}
        for metric, values in self._state.named(now, foreign.BANDWIDTH).values():
            for labels, value in values.items():
                named = dict(zip(metric.labels, labels, strict=True))
                one = Operation(**foreign.operation(named))
                one = one if one.host else one._replace(host=self._host)
                if isinstance(value, float):
                    found[one] = value
                    self._pids[one] = next((named[name] for name in foreign.PID if name in named), "")
        return found

    def _changes(self, now: float, verdicts: Mapping[tuple[str, ...], SlowCollective]) -> Iterator[Finding]:
        for subject, until in [*self._restored.items()]:
            if subject in verdicts or now >= until:
                del self._restored[subject]
        for subject in [*self._firing.keys() - verdicts.keys() - self._restored.keys()]:
            yield self._firing.pop(subject)._replace(time=self._wall(), over=True)
        for subject, one in verdicts.items():
            if subject not in self._firing:
                self._firing[subject] = self._finding(now, one)
                yield self._firing[subject]

    def _finding(self, now: float, one: SlowCollective) -> Finding:
        run, rank, run_id = self._rank(now, one)
        labels = {"communicator": one.communicator, "gpu": one.gpu, "host": one.host, "run": run, "rank": rank}
        of = f" (rank {rank} of {run})" if run else ""
        return Finding(
            ALERT,
            "warning",
            tuple(sorted((name, value) for name, value in labels.items() if value)),
            self._wall(),
            f"{one.text}, in communicator {one.communicator}{of}",
            TROUBLES[ALERT].advice(one.kind),
            run=run_id,
            evidence={"value": one.value, "usual": one.usual, "kind": one.kind, "since": self._wall()},
        )

    def _rank(self, now: float, one: SlowCollective) -> tuple[str, str, str]:
        """Return the run, the rank and the run's id of a GPU or a process of this machine; empty if they are unknown."""
        ranks, processes, runs = self._state.values(now, gpu.RANK_INFO, process.PROCESS_INFO, RUN_INFO)
        found = ("", "")
        if one.host.partition(".")[0] == self._host:
            found = next(
                ((run, rank) for index, uuid, run, rank in ranks if foreign.is_gpu(one.gpu, index, uuid)), found
            )
        pids = {pid for other, pid in self._pids.items() if other[:3] == (one.host, one.gpu, one.communicator)} - {""}
        pid, name, place = map(process.PROCESS_INFO.labels.index, ("pid", "run", "rank"))
        found = next(
            ((labels[name], labels[place]) for labels in processes if labels[pid] in pids and labels[name]), found
        )
        return *found, run_id_of(found[0], {RUN_INFO.name: FamilyValues(RUN_INFO, runs)})


def _subject(labels: Mapping[str, str], kind: str) -> tuple[str, ...]:
    """Return `SlowCollective.subject` of an alert."""
    host = labels.get("host", "")
    return ("link", host) if kind == "link" else ("rank", host, labels.get("gpu", ""))
