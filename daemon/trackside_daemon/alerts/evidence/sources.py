"""Sources of evidence: the newest values, the history, the processes of the training, and stacks from its ranks."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from trackside.wire import BatchesQuestion
from trackside_daemon.collectors.process.process import TrainingProcess
from trackside_daemon.history.read.resources import Resource
from trackside_daemon.history.read.series import Readable
from trackside_daemon.model.capture import RankAnswer
from trackside_daemon.model.metric import Distribution
from trackside_daemon.model.records import Alert
from trackside_daemon.model.state import State

RequestStacks = Callable[[str, frozenset[int]], tuple[frozenset[int], Sequence["RankAnswer"]]]
"""Requests the stacks of some ranks of a run, by its id, and waits for a few seconds at most.

Returns the ranks that received the request, and the answers.
"""

AskBatches = Callable[[str, frozenset[int], BatchesQuestion], tuple[frozenset[int], Sequence["RankAnswer"]]]


Family = Mapping[tuple[str, ...], float | Distribution]

MAX_RANKS = 64
"""Most ranks of an alert with their values, and most that are asked for batches: more would not fit into the evidence."""


class Sources(NamedTuple):
    """Sources of evidence."""

    state: State  # newest values of all families
    history: Readable  # history to read
    request_stacks: RequestStacks  # see `RequestStacks`
    processes: Callable[[], Sequence[TrainingProcess]]  # returns the processes of the training as of the last tick
    # Waits until the history has committed all records so far, for a few seconds at most.
    wait_written: Callable[[], object]
    pause: Callable[[float], object] = time.sleep  # waits for a number of seconds, or until the daemon stops
    diagnose: Callable[[str], Sequence[str]] = lambda _: ()  # returns the lines of a run's diagnosis, by its id
    # Asks ranks of a run, by its id, for batches; returns as `RequestStacks`.
    ask_batches: AskBatches = lambda *_: (frozenset(), ())
    # Returns the recent seconds by phase of the ranks of a run, by its name.
    phases: Callable[[str], Sequence[Resource]] = lambda _: ()
    console: Callable[[str], bytes] = lambda _: b""  # returns the newest output that is kept of a launch
    proc: str = "/proc"  # path of procfs


class AlertCase(NamedTuple):
    """Alert whose evidence is gathered."""

    alert: Alert
    sources: Sources  # sources of evidence
    now: float  # monotonic time, in seconds
    wall: float  # Unix time, in seconds
    until: float  # Unix time of the alert; later samples are not evidence
    missing: list[str]  # one line for each part that could not be gathered, with the reason; parts append to it

    @property
    def run(self) -> str:
        """Name of the run; empty for the machine."""
        return self.alert.labels.get("run", "")

    def ranks(self) -> list[str]:
        """Return the ranks of the alert: the one in its labels, then those that its finding names."""
        in_labels = [self.alert.labels["rank"]] if "rank" in self.alert.labels else []
        return list(dict.fromkeys([*in_labels, *map(str, self.alert.evidence.get("ranks", {}))]))

    def shown_ranks(self, states: Family) -> list[str]:
        """Return the ranks of the alert, then the other ranks of the run, by the *states* of all ranks; `MAX_RANKS` at most."""
        ranks_of_run = {labels[1] for labels in states if labels[0] == self.run}
        others = sorted(ranks_of_run, key=lambda rank: (len(rank), rank))
        return list(dict.fromkeys([*self.ranks(), *others]))[:MAX_RANKS]
