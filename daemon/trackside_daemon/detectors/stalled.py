"""A run that makes no step any more, or a rank that others leave behind: by the pace that the run itself has had."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from shlex import quote
from typing import TYPE_CHECKING

from trackside_daemon.detectors.pace import BEGINNING, ENOUGH, OVER_LONGEST, OVER_PAUSE, PAUSE, WARNING
from trackside_daemon.detectors.run_rank import SYNC_PHASES, Rank
from trackside_daemon.detectors.wording import count, span

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from trackside_daemon.detectors.clock import Clock
    from trackside_daemon.detectors.run_view import Run
    from trackside_daemon.model.finding import Finding, Severity
    from trackside_daemon.model.records import Alert

FLOOR = 60.0
"""Seconds of silence that are never a stall."""

CONSEQUENCE = 60.0
"""Seconds: what falls silent so soon before or after a rank's death does so because of it."""

STACKS = "`trackside alerts show {alert} --run {run}` has where its threads are"

NAMED = 4
"""So many ranks are named."""


class Stalled:
    """`TrainingStalled` of one run, all of whose ranks are silent."""

    alert = "TrainingStalled"

    def __init__(self, run: Run) -> None:
        self._run = run
        self._severity: Severity | None = None
        self._adopted: Alert | None = None

    def restore(self, kept: Alert) -> None:
        """It was stalled before this daemon, and is until a rank goes on."""
        self._adopted = kept
        self._severity = "critical" if kept.severity == "critical" else "warning"
        self._run.stalled = self._run.adopted = True

    def evaluate(self, clock: Clock) -> Iterator[Finding]:
        """What time has changed."""
        run = self._run
        if self._adopted is not None and self._severity is not None:
            if run.stalled:
                since = float(self._adopted.evidence.get("since", self._adopted.started))
                run.at = clock.at - max(0.0, clock.now - since)
            self._adopted = None
            yield self._finding(self._severity, clock)
        if not run.stalled:
            yield from self.end(clock)
        severity = self._judge(clock.at - run.at)
        if severity is not None and self._severity not in {severity, "critical"}:
            self._severity = severity
            run.stalled = True
            yield self._finding(severity, clock)

    def end(self, clock: Clock) -> Iterator[Finding]:
        """It goes on, or has ended."""
        run = self._run
        if self._severity is not None:
            went = "" if run.high is None else f": step {count(run.high)}"
            text = f"run {run.name} is not stalled any more{went}"
            yield run.alarm("TrainingStalled", self._severity, clock.now, text, over=True)
        self._severity, self._adopted, run.stalled, run.adopted = None, None, False, False

    def _judge(self, silence: float) -> Severity | None:
        run = self._run
        if not any(not rank.ended for rank in run.ranks.values()) or self._is_consequence():
            return None
        deadline = allowed(run, run.pausing)
        return "critical" if silence > deadline else "warning" if silence > WARNING * deadline else None

    def _is_consequence(self) -> bool:
        """A rank has died, which was told, and the others wait for it."""
        died = self._run.died
        return died is not None and died > self._run.at - CONSEQUENCE

    def _finding(self, severity: Severity, clock: Clock) -> Finding:
        run = self._run
        silence = clock.at - run.at
        since = clock.now - silence
        ranks = sorted((rank for rank in run.ranks.values() if not rank.ended), key=_behind)
        if run.high is None:
            summary = f"run {run.name} has not made its first step in {span(silence)}"
            usual = "Before the first steps half an hour is allowed for data and compilation."
        else:
            summary = f"run {run.name} has made no step for {span(silence)}, since step {count(run.high)}"
            usual = _usual(run, since)
        look = f"{_stacks(self.alert, run)}; then see whether its GPU computes and its disk answers."
        evidence = {
            "since": since,
            "ranks": {str(rank.number): _last(rank) for rank in islice(ranks, 8)},
        }
        text = " ".join(filter(None, (usual, _who(ranks), look)))
        return run.alarm("TrainingStalled", severity, clock.now, summary, text, evidence=evidence)


class RankSilent:
    """`RankSilent` of one run: a rank pushes no more while others go on. Of several it is said of the first."""

    alert = "RankSilent"

    def __init__(self, run: Run, floor: float) -> None:
        self._run = run
        self._floor = floor / 2
        self._said: Rank | None = None
        self._adopted: int | None = None

    def restore(self, kept: Alert) -> None:
        """A rank was silent before this daemon, and is until it pushes."""
        self._adopted = int(kept.labels.get("rank", 0))
        self._run.silent.add(self._adopted)

    def evaluate(self, clock: Clock) -> Iterator[Finding]:
        """What time has changed; costs what the silent ranks are, as those that are silent for longest come first."""
        run = self._run
        rank = None if self._adopted is None else run.ranks.get(self._adopted)
        if rank is not None and rank.stamp is not None:
            self._said, self._adopted = rank, None
            yield self._finding(rank, clock.at - rank.at, clock)
        if self._said is not None and self._said.number not in run.silent:
            yield from self.end(clock)
        if len(run.order) < 2 or run.stalled or clock.at - run.at > self._floor / 2:
            return  # all are silent
        for rank in run.order.values():
            silence = clock.at - rank.at
            if silence <= self._floor:
                return
            if rank.pushes <= ENOUGH or silence <= allowed_rank(rank) or _is_ahead(rank, run):
                continue
            run.silent.add(rank.number)
            if self._said is None:
                self._said = rank
                yield self._finding(rank, silence, clock)

    def end(self, clock: Clock) -> Iterator[Finding]:
        """It pushes again, or has ended."""
        if self._said is not None:
            number = self._said.number
            text = f"rank {number} of run {self._run.name} is not silent any more"
            yield self._run.alarm("RankSilent", "warning", clock.now, text, rank=number, over=True)
        self._said = None

    def _finding(self, rank: Rank, silence: float, clock: Clock) -> Finding:
        run = self._run
        others = sum(clock.at - other.at > silence / 2 for other in run.order.values()) - 1
        more = f", and so have {others} more ranks" if others > 1 else ", and so has one more" if others else ""
        summary = (
            f"rank {rank.number} of run {run.name} has pushed nothing for {span(silence)} while others go on{more}: "
            f"its last step is {count(rank.step or 0)}, theirs {count(run.high or 0)}"
        )
        text = f"Its longest pause of late was {span(rank.longest.seconds)}. {_stacks(self.alert, run)}."
        evidence = {"since": clock.now - silence, "ranks": {str(rank.number): _last(rank)}}
        return run.alarm("RankSilent", "warning", clock.now, summary, text, rank=rank.number, evidence=evidence)


def stood(kept: Iterable[Alert], rank: int, _: float | None) -> bool:
    """Whether a rank stood still by what fired before this daemon, whenever it has pushed."""
    return any(
        one.alert == Stalled.alert or (one.alert == RankSilent.alert and one.labels.get("rank") == str(rank))
        for one in kept
    )


def allowed(run: Run, pausing: set[int]) -> float:
    """Seconds for which the run may be silent, now that these ranks of it are in a pause."""
    deadline = run.pace.deadline
    if not pausing:
        return deadline
    new = any(run.ranks[number].phase not in run.paused for number in islice(pausing, 4))
    return max(deadline, BEGINNING if new else max(PAUSE, OVER_PAUSE * run.pace.longest))


def allowed_rank(rank: Rank) -> float:
    """Seconds for which a rank may be silent while others go on."""
    longest = rank.longest.seconds
    if not rank.pauses:
        return OVER_LONGEST * longest
    return max(BEGINNING if rank.phase not in rank.run.paused else PAUSE, OVER_PAUSE * longest)


def _is_ahead(rank: Rank, run: Run) -> bool:
    """A rank with the highest step has nothing to catch up with."""
    return rank.step is not None and run.high is not None and rank.step >= run.high


def _behind(rank: Rank) -> tuple[float, float, int]:
    return (-1 if rank.step is None else rank.step, rank.at, rank.number)


def _last(rank: Rank) -> dict[str, object]:
    """What is known of it, for the alert's evidence."""
    known = {"step": rank.step, "phase": rank.phase}
    return {name: value for name, value in known.items() if value not in (None, "")}


def _usual(run: Run, since: float) -> str:
    """How fast it was, until *since*, in Unix seconds."""
    pause = f"no pause was longer than {span(run.pace.longest)}"
    if run.started and run.steps and since > run.started:
        return f"Until then a step took {span((since - run.started) / run.steps)} on average, and {pause}."
    return f"Until then {pause}."


def _stacks(alert: str, run: Run) -> str:
    return STACKS.format(alert=alert, run=quote(run.name))


def _who(ranks: Sequence[Rank]) -> str:
    """Which of the ranks, those behind first, to look at: in a collective all that wait in it are at the same step."""
    if not ranks:
        return ""
    first = ranks[0]
    behind = [rank for rank in ranks if rank.step == first.step]
    if len(ranks) == 1:
        return f"It is in the phase {first.phase}." if first.phase else ""
    at = "without a step" if first.step is None else f"at step {count(first.step)}"
    if len(behind) == len(ranks):
        return f"All {len(ranks)} ranks are {at}{_astray(ranks)}."
    who = f"Rank {first.number} is" if len(behind) == 1 else f"Ranks {_numbers(behind)} are"
    phase = f", in the phase {first.phase}" if first.phase and len(behind) == 1 else ""
    return f"{who} furthest behind, {at}{phase}."


def _astray(ranks: Sequence[Rank]) -> str:
    """Who is not where most are; of as many that which waits for others counts."""
    phases = Counter(rank.phase for rank in ranks if rank.phase)
    most = max(phases, key=lambda phase: (phases[phase], phase in SYNC_PHASES), default="")
    astray = [rank for rank in ranks if rank.phase and rank.phase != most]
    if not astray:
        return f", in the phase {most}" if most else ""
    if len(astray) == phases[most] and most not in SYNC_PHASES:
        return ""
    who = f"rank {astray[0].number} is" if len(astray) == 1 else f"ranks {_numbers(astray)} are"
    waits, wait = ("waits", "wait") if most in SYNC_PHASES else ("is", "are")
    others = f"the other {waits}" if phases[most] == 1 else f"the others {wait}"
    there = f", but in {astray[0].phase}" if len({rank.phase for rank in astray}) == 1 else ""
    return f"; {who} not in the phase {most}, in which {others}{there}"


def _numbers(ranks: Sequence[Rank]) -> str:
    """``1, 5 and 7``; of many the first."""
    numbers = [str(rank.number) for rank in ranks]
    if len(numbers) > NAMED:
        return f"{', '.join(numbers[:NAMED])} and {len(numbers) - NAMED} more"
    return f"{', '.join(numbers[:-1])} and {numbers[-1]}"
