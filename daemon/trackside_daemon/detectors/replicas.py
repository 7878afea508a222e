"""Compare what several ranks of a run must have in common, bit by bit, by the hashes that they send."""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from trackside.wire import TensorHash
from trackside_daemon.detectors.run_view import RunAlert, RunClock, RunProgress
from trackside_daemon.model.finding import Finding, Severity
from trackside_daemon.model.recent import Recent
from trackside_daemon.model.records import Alert
from trackside_daemon.model.text import counted, number, shown
from trackside_daemon.model.troubles import TROUBLES

WAITING = 16_384  # hashes that wait for those of further ranks, which may be late or send to another daemon
LEAST = 256  # comparisons that wait, however many ranks there are: one sends those of two seconds at once
PARTS = 8192  # most parts of tensors whose last comparison is remembered
NAMED = 4  # ranks and tensors that a text names

Part = tuple[int, str, int]
"""Group of ranks, name of a tensor, and the number of a part of it."""


class _Difference(NamedTuple):
    """A part that differs.

    Attributes:
        first: The hash that has shown it first.
        equal: Step at which it was equal last; None if it never was.
        alone: The ranks that differ from most others; none if there is no majority.
        ranks: How many were compared.
        pair: The first two of them: all would be megabytes for a model of a thousand ranks.
    """

    first: TensorHash
    equal: int | None
    alone: tuple[int, ...]
    ranks: int
    pair: tuple[int, ...]


class ReplicasDiffer(RunAlert):
    """`ReplicasDiffer` of one run."""

    alert = "ReplicasDiffer"
    ends = "the ranks of run {run} have the same parameters again, or it has ended"

    def __init__(self, run: RunProgress) -> None:
        super().__init__(run)
        self._waiting: OrderedDict[tuple[Part, int, int], dict[int, int]] = OrderedDict()
        self._seen: dict[int, int] = {}
        """How many ranks of a group send to this daemon, if some do not."""
        self._equal = Recent[Part, int](PARTS)
        self._differing: dict[Part, _Difference] = {}
        self._kept: tuple[object, object] | None = None
        """Tensor and part of the alert of an earlier daemon, until they are equal."""
        self._loss_follows = False

    def restore(self, kept: Alert) -> None:
        """Continue an alert of the previous daemon until its tensor is equal, or the run has ended."""
        super().restore(kept)
        self._kept = kept.evidence.get("tensor"), kept.evidence.get("part")

    def accept(self, rank: int, hashes: Iterable[TensorHash]) -> None:
        """Compare the hashes of a rank with those of the others."""
        for one in hashes:
            # With the training's step, ranks are not compared that began to watch, or train, at different times.
            key = (one.group, one.name, one.part), one.count, one.step
            found = self._waiting.setdefault(key, {})
            found[rank] = one.value
            if len(found) >= max(2, min(self._seen.get(one.group, one.ranks), len(self._run.ranks))):
                self._compare(one, found)
            if len(found) >= one.ranks:
                del self._waiting[key]
            if len(self._waiting) > max(LEAST, WAITING // max(1, one.ranks)):
                ((group, _, _), _, _), found = self._waiting.popitem(last=False)
                if len(found) > 1 and (group in self._seen or len(self._seen) < PARTS):
                    self._seen[group] = len(found)

    def loss_is_lost(self) -> None:
        """Note a loss that is not finite."""
        self._loss_follows = bool(self._differing)

    def _compare(self, one: TensorHash, values: Mapping[int, int]) -> None:
        part = one.group, one.name, one.part
        usual, most = Counter(values.values()).most_common(1)[0]
        before = self._differing.get(part)
        if most == len(values):
            self._equal[part] = max(one.step, self._equal.get(part, one.step))
            self._differing.pop(part, None)
            if self._kept == (one.name, one.part + 1):
                self._kept = None
        elif before is not None or len(self._differing) < PARTS:
            alone = tuple(sorted(rank for rank, value in values.items() if value != usual and 2 * most > len(values)))
            first, equal = (one, self._equal.get(part)) if before is None else before[:2]
            self._differing[part] = _Difference(first, equal, alone, len(values), tuple(sorted(values)[:2]))

    def _changes(self, clock: RunClock) -> Iterator[Finding]:
        if self._differing:
            yield from self._report(clock)
        elif self._kept is None:
            yield from self.end(clock)

    def end(self, clock: RunClock, since: float | None = None) -> Iterator[Finding]:
        """End the alert: all parts are equal again, or the run has ended."""
        yield from self._report(clock)
        yield from super().end(clock, since)
        self._kept = None
        self._differing.clear()

    def _report(self, clock: RunClock) -> Iterator[Finding]:
        """Yield what differs, if that is new or worse than was reported."""
        tensors = {name for _, name, _ in self._differing}
        severity: Severity = "critical" if len(tensors) > 1 or self._loss_follows else "warning"
        if tensors and self._severity not in {severity, "critical"}:
            yield self._finding(severity, tensors, clock)

    def _finding(self, severity: Severity, tensors: set[str], clock: RunClock) -> Finding:
        found = min(self._differing.values(), key=lambda one: one.first.step)
        first, equal, alone = found[:3]
        which = f"part {first.part + 1:,} of {first.parts:,} of " if first.parts > 1 else ""
        others = sorted(tensors - {first.name})
        more = f" and {counted(len(others), 'more tensor')}: {', '.join(map(shown, others[:NAMED]))}" if others else ""
        more += ", …" * (len(others) > NAMED)
        since = "" if equal is None else f"; at step {number(equal)} they were equal"
        summary = (
            f"{_who(found, self._run.name)} at step {number(first.step)}, in {which}the "
            f"{'buffer' if first.buffer else 'parameter'} {shown(first.name)}{more}{since}"
        )
        loss = "The loss has become NaN or infinite since. " if self._loss_follows else ""
        text = f"{loss}{TROUBLES[self.alert].advice(_case(found, len(tensors)), self._run.name)}"
        step = {"step": first.step, "equal_at_step": equal}
        evidence = {"tensor": first.name, "part": first.part + 1, **step, "ranks_alone": list(alone)}
        if self._severity is None:  # what makes it worse, and its end, have the same rank
            self._rank = alone[0] if len(alone) == 1 else None
        return self.report(severity, clock, summary, text, evidence)


def _case(found: _Difference, tensors: int) -> str:
    """Return the likely cause, as the next steps of the alert name it."""
    if found.first.buffer:
        return "buffer"
    if found.equal is None and (not found.alone or tensors > 1):
        return "start"
    return "" if found.alone else "pair" if found.ranks == 2 else "unsynchronized"


def _who(found: _Difference, run: str) -> str:
    """Return who differs, as the begin of a sentence."""
    alone, ranks = found.alone, found.ranks
    if not alone:
        pair = "ranks {} and {} of run {} differ".format(*found.pair, run) if ranks == 2 else ""
        return pair or f"{ranks} ranks of run {run} differ from each other"
    named = ", ".join(map(str, alone[:NAMED])) + ", …" * (len(alone) > NAMED)
    verb = f"rank {named} of run {run} differs" if len(alone) == 1 else f"ranks {named} of run {run} differ"
    return f"{verb} from the {counted(ranks - len(alone), 'other')}"
