"""Detect a run that makes no more steps, or a rank that falls behind the others, by the pace of the run itself."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from shlex import quote

from trackside_daemon.detectors.pace import BEGINNING, ENOUGH, OVER_LONGEST, OVER_PAUSE, PAUSE, WARNING, PushPace
from trackside_daemon.detectors.run_view import RankProgress, RunAlert, RunClock, RunProgress
from trackside_daemon.model.finding import Finding, Severity
from trackside_daemon.model.records import Alert
from trackside_daemon.model.stall import standing
from trackside_daemon.model.text import duration, moment, number, some
from trackside_daemon.model.time_ledger import SYNC_PHASES
from trackside_daemon.model.troubles import TROUBLES

CONSEQUENCE = 60.0  # seconds around the death of a rank in which silence of the run is its consequence

NAMED = 4  # ranks that an alert names


class Stalled(RunAlert):
    """`TrainingStalled` of one run: all its ranks are silent."""

    alert = "TrainingStalled"
    ends = "run {run} is no longer stalled{at}"

    def restore(self, kept: Alert) -> None:
        """Continue an alert of the previous daemon until a rank makes a step."""
        super().restore(kept)
        self._run.stalled = self._run.restored = True

    def evaluate(self, clock: RunClock) -> Iterator[Finding]:
        """Yield what changed since the last call."""
        run = self._run
        if self._restored is not None and self._severity is not None:
            if run.stalled:
                since = float(self._restored.evidence.get("since", self._restored.started))
                run.at = clock.at - max(0.0, clock.now - since)
            self._restored = None
            yield self._finding(self._severity, clock)
        if not run.stalled:
            yield from self.end(clock)
        severity = self._judge(clock.at - run.at)
        if severity is not None and self._severity not in {severity, "critical"}:
            run.stalled = True
            yield self._finding(severity, clock)

    def end(self, clock: RunClock, since: float | None = None) -> Iterator[Finding]:
        """End the alert, because the run continues or has ended."""
        yield from super().end(clock, since)
        self._restored, self._run.stalled, self._run.restored = None, False, False

    def _judge(self, silence: float) -> Severity | None:
        run = self._run
        # The others wait for a rank that died, which was reported.
        is_consequence = run.died is not None and run.died > run.at - CONSEQUENCE
        if is_consequence or all(rank.ended for rank in run.ranks.values()):
            return None
        deadline = allowed(run, run.pausing)
        warning = WARNING * deadline if run.pausing else run.pace.warning
        return "critical" if silence > deadline else "warning" if silence > warning else None

    def _finding(self, severity: Severity, clock: RunClock) -> Finding:
        run = self._run
        silence = clock.at - run.at
        since = clock.now - silence
        ranks = sorted((rank for rank in run.ranks.values() if not rank.ended), key=_behind)
        usual = (
            f"Before the first steps, {duration(run.pace.beginning)} are allowed for data and compilation."
            if run.high is None
            else _usual(run.pace)
        )
        summary = standing(run.name, since, run.high) + _who(ranks)
        evidence = {"since": since, "ranks": {str(rank.number): _last(rank) for rank in islice(ranks, 8)}}
        text = f"{usual} {TROUBLES[self.alert].advice(run=quote(run.name))}"
        return self.report(severity, clock, summary, text, evidence)


class RankSilent(RunAlert):
    """`RankSilent` of one run: a rank stopped pushing while others continue. Of several, the first is reported."""

    alert = "RankSilent"
    ends = "rank {rank} of run {run} is no longer silent"

    def __init__(self, run: RunProgress) -> None:
        super().__init__(run)
        self._floor = run.pace.floor / 2
        self._expected: int | None = None

    def restore(self, kept: Alert) -> None:
        """Continue an alert of the previous daemon until the rank pushes."""
        self._expected = int(kept.labels.get("rank", 0))
        self._run.silent.add(self._expected)

    def evaluate(self, clock: RunClock) -> Iterator[Finding]:
        """Yield what changed since the last call.

        The ranks that are silent for longest come first, so the cost grows only with the number of silent ranks.
        """
        run = self._run
        rank = None if self._expected is None else run.ranks.get(self._expected)
        if rank is not None and rank.pushed_at is not None:
            self._expected = None
            yield self._finding(rank, clock.at - rank.at, clock)
        if self._rank is not None and self._rank not in run.silent:
            yield from self.end(clock)
        if len(run.order) < 2 or run.stalled or clock.at - run.at > self._floor / 2:
            return  # all are silent
        for rank in run.order.values():
            silence = clock.at - rank.at
            if silence <= self._floor:
                return
            is_ahead = rank.step is not None and run.high is not None and rank.step >= run.high
            if rank.pushes <= ENOUGH or silence <= allowed_rank(rank) or is_ahead:  # what is ahead need not catch up
                continue
            run.silent.add(rank.number)
            if self._rank is None:
                yield self._finding(rank, silence, clock)

    def _finding(self, rank: RankProgress, silence: float, clock: RunClock) -> Finding:
        run, self._rank = self._run, rank.number
        others = sum(clock.at - other.at > silence / 2 for other in run.order.values()) - 1
        more = f", and so have {others} more ranks" if others > 1 else ", and so has one more" if others else ""
        since = clock.now - silence
        summary = (
            f"rank {rank.number} of run {run.name} has pushed nothing since {moment(since, ' %Z')}, while others continue{more}: "
            f"its last step is {number(rank.step or 0)}, theirs {number(run.high or 0)}"
        )
        advice = TROUBLES[self.alert].advice(run=quote(run.name))
        text = f"Its longest recent pause was {duration(rank.longest.seconds)}. {advice}"
        evidence = {"since": since, "ranks": {str(rank.number): _last(rank)}}
        return self.report("warning", clock, summary, text, evidence)


def allowed(run: RunProgress, pausing: set[int]) -> float:
    """Return the seconds for which the run may be silent while these ranks are in a pause."""
    deadline = run.pace.deadline
    if not pausing:
        return deadline
    new = any(run.ranks[number].phase not in run.paused for number in islice(pausing, 4))
    return max(deadline, BEGINNING if new else max(PAUSE, OVER_PAUSE * run.pace.longest.seconds))


def allowed_rank(rank: RankProgress) -> float:
    """Return the seconds for which a rank may be silent while others continue."""
    longest = rank.longest.seconds
    if not rank.pauses:
        return OVER_LONGEST * longest
    return max(BEGINNING if rank.phase not in rank.run.paused else PAUSE, OVER_PAUSE * longest)


def _behind(rank: RankProgress) -> tuple[float, float, int]:
    return (-1 if rank.step is None else rank.step, rank.at, rank.number)


def _last(rank: RankProgress) -> dict[str, object]:
    """Return the step and the phase of a rank, as evidence."""
    last = {"step": rank.step, "phase": rank.phase}
    return {name: value for name, value in last.items() if value not in (None, "")}


def _usual(pace: PushPace) -> str:
    """Return a sentence on the pace of the run until it fell silent."""
    pause = f"no pause was longer than {duration(pace.longest.seconds)}"
    if pace.steps:
        return f"Until then a step took {duration(pace.seconds / pace.steps)} on average, and {pause}."
    return f"Until then {pause}."


def _who(ranks: Sequence[RankProgress]) -> str:
    """Return a clause that names the ranks to check; *ranks* has those furthest behind first.

    In a collective, all ranks that wait are at the same step.
    """
    if not ranks:
        return ""
    first = ranks[0]
    behind = [rank for rank in ranks if rank.step == first.step]
    phase = f", in the phase {first.phase}" if first.phase and len(behind) == 1 else ""
    if len(ranks) == 1:
        return phase
    at = "without a step" if first.step is None else f"at step {number(first.step)}"
    if len(behind) == len(ranks):
        return f": all {len(ranks)} ranks are {at}{_astray(ranks)}"
    who = f"rank {first.number} is" if len(behind) == 1 else f"ranks {_numbers(behind)} are"
    return f": {who} furthest behind, {at}{phase}"


def _astray(ranks: Sequence[RankProgress]) -> str:
    """Return a clause on the ranks in another phase than most; on a tie, the phase that waits for others counts as most."""
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


def _numbers(ranks: Sequence[RankProgress]) -> str:
    """Return ``1, 5 and 7``; of many, only the first."""
    numbers = [str(rank.number) for rank in ranks]
    if len(numbers) > NAMED:
        return some(numbers, NAMED)
    return f"{', '.join(numbers[:-1])} and {numbers[-1]}"
