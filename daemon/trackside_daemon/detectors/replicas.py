"""Compare what several ranks of a run must have in common, bit by bit, by the hashes that they send."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.model.text import counted, number, shown
from trackside_daemon.model.troubles import TROUBLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from trackside.wire import TensorHash
    from trackside_daemon.detectors.run_view import RunClock, RunProgress
    from trackside_daemon.model.finding import Finding, Severity
    from trackside_daemon.model.records import Alert

GROUPS = 1024  # most groups of ranks and tensors that are remembered; with more, the oldest are forgotten
WAITING = 16  # comparisons of a group that wait for further ranks, which may send to another daemon or be late
PARTS = 8192  # most parts of tensors whose last comparison is remembered
NAMED = 4  # ranks and tensors that a text names

Part = tuple[str, int]
"""Name of a tensor, and the number of a part of it."""


class _Group:
    """Ranks that share some tensors.

    Attributes:
        ranks: How many of them send to this daemon, as far as is known.
        waiting: Hashes by rank, of each comparison that more ranks may join; the oldest first.
    """

    __slots__ = ("ranks", "waiting")

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.waiting: OrderedDict[tuple[int, int, Part], dict[int, int]] = OrderedDict()


class _Difference(NamedTuple):
    """A part that differs.

    Attributes:
        step: Step at which it was first found.
        equal: Step at which it was equal last; None if it never was.
        alone: The ranks that differ from most others; none if no two in three are equal, or there are two ranks.
        ranks: All ranks that were compared.
        kind: As `TensorHash.kind`.
        parts: As `TensorHash.parts`.
    """

    step: int
    equal: int | None
    alone: tuple[int, ...]
    ranks: tuple[int, ...]
    kind: str
    parts: int


class Replicas:
    """`ReplicasDiffer` of one run."""

    alert = "ReplicasDiffer"

    def __init__(self, run: RunProgress) -> None:
        self._run = run
        self._groups: OrderedDict[int, _Group] = OrderedDict()
        self._equal: dict[tuple[int, Part], int] = {}
        self._differing: dict[tuple[int, Part], _Difference] = {}
        self._reported: Severity | None = None
        self._restored: Alert | None = None
        self._loss_follows = False

    def restore(self, kept: Alert) -> None:
        """Continue an alert of the previous daemon until its tensor is equal."""
        self._restored, self._reported = kept, "critical" if kept.severity == "critical" else "warning"
        part = str(kept.evidence.get("tensor", "")), int(kept.evidence.get("part", 0))
        self._differing[0, part] = _Difference(0, None, (), (), "", 1)

    def accept(self, rank: int, hashes: Iterable[TensorHash]) -> None:
        """Compare the hashes of a rank with those of the others."""
        for one in hashes:
            if one.group not in self._groups and len(self._groups) >= GROUPS:
                self._groups.popitem(last=False)
            group = self._groups.setdefault(one.group, _Group(one.ranks))
            part = one.name, one.part
            # With the training's step, ranks are not compared that began to watch, or train, at different times.
            found = group.waiting.setdefault((one.count, one.step, part), {})
            found[rank] = one.value
            if len(found) >= group.ranks:
                self._compare(one, found)
            if len(group.waiting) > WAITING:
                _, found = group.waiting.popitem(last=False)
                if len(found) > 1:
                    group.ranks = len(found)

    def loss_is_lost(self) -> None:
        """Note a loss that is not finite."""
        self._loss_follows = bool(self._differing)

    def _compare(self, one: TensorHash, values: Mapping[int, int]) -> None:
        if len(values) < 2:
            return
        part = one.name, one.part
        key = one.group, part
        counts = Counter(values.values()).most_common()
        if len(counts) == 1:
            self._equal[key] = max(one.step, self._equal.pop(key, one.step))
            if len(self._equal) > PARTS:
                del self._equal[next(iter(self._equal))]
            self._differing.pop(key, None)
            self._differing.pop((0, part), None)  # as an earlier daemon reported it
            return
        usual, most = counts[0]
        alone = (
            tuple(sorted(rank for rank, value in values.items() if value != usual)) if 2 * most > len(values) else ()
        )
        before = self._differing.get(key)
        step, equal = (one.step, self._equal.get(key)) if before is None else (before.step, before.equal)
        if before is not None or len(self._differing) < PARTS:
            self._differing[key] = _Difference(step, equal, alone, tuple(sorted(values)), one.kind, one.parts)

    def evaluate(self, clock: RunClock) -> Iterator[Finding]:
        """Yield what changed since the last call."""
        if self._restored is not None:
            yield self._run.restored_finding(self._restored, clock.now)
            self._restored = None
        if self._differing:
            yield from self._report(clock)
        else:
            yield from self.end(clock)

    def end(self, clock: RunClock) -> Iterator[Finding]:
        """End the alert: all parts are equal again, or the run has ended."""
        yield from self._report(clock)
        if self._reported is not None:
            text = f"the ranks of run {self._run.name} have the same parameters again, or it has ended"
            yield self._run.finding(self.alert, self._reported, clock.now, text, over=True)
        self._reported = None
        self._differing.clear()

    def _report(self, clock: RunClock) -> Iterator[Finding]:
        """Yield what differs, if that is new or worse than was reported."""
        tensors = {name for _, (name, _) in self._differing}
        severity: Severity = "critical" if len(tensors) > 1 or self._loss_follows else "warning"
        if tensors and self._reported not in {severity, "critical"}:
            self._reported = severity
            yield self._finding(severity, tensors, clock)

    def _finding(self, severity: Severity, tensors: set[str], clock: RunClock) -> Finding:
        (_, (name, part)), first = min(self._differing.items(), key=lambda one: one[1].step)
        ranks = Counter(rank for one in self._differing.values() for rank in one.alone)
        which = f"part {part + 1:,} of {first.parts:,} of " if first.parts > 1 else ""
        what = f"{which}the {'buffer' if first.kind == 'buffer' else 'parameter'} {shown(name)}"
        others = sorted(tensors - {name})
        more = f" and {counted(len(others), 'more tensor')}: {', '.join(map(shown, others[:NAMED]))}" if others else ""
        more += ", …" * (len(others) > NAMED)
        since = "" if first.equal is None else f"; at step {number(first.equal)} they were equal"
        who = _who(first).format(f" of run {self._run.name}")
        summary = f"{who} at step {number(first.step)}, in {what}{more}{since}"
        case = self._case(first)
        loss = "The loss has become NaN or infinite since. " if self._loss_follows else ""
        evidence = {
            "tensor": name,
            "part": part,
            "step": first.step,
            "equal": first.equal,
            "ranks_alone": list(first.alone),
        }
        advice = TROUBLES[self.alert].advice(case, self._run.name)
        rank = min(first.alone) if len(ranks) == 1 and first.alone else None
        return self._run.finding(
            self.alert, severity, clock.now, summary, f"{loss}{advice}", rank=rank, evidence=evidence
        )

    def _case(self, first: _Difference) -> str:
        """Return the likely cause, as the next steps are named."""
        if first.kind:
            return first.kind
        if first.equal is None and (not first.alone or len({name for _, (name, _) in self._differing}) > 1):
            return "start"
        return "" if first.alone else "pair" if len(first.ranks) == 2 else "unsynchronized"


def _who(first: _Difference) -> str:
    """Return who differs, as the begin of a sentence with a place for the run."""
    alone, ranks = first.alone, len(first.ranks)
    if not alone:
        return (
            "ranks {} and {}{{}} differ".format(*first.ranks)
            if ranks == 2
            else f"{ranks} ranks{{}} differ from each other"
        )
    named = ", ".join(map(str, alone[:NAMED])) + ", …" * (len(alone) > NAMED)
    verb = f"rank {named}{{}} differs" if len(alone) == 1 else f"ranks {named}{{}} differ"
    return f"{verb} from the {counted(ranks - len(alone), 'other')}"
