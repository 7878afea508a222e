"""One attempt of a run, and the client sessions that speak of it.

It speaks as several sources: ``training:RUN.ATTEMPT`` for the series that outlive it, ``training:RUN.ATTEMPT:RANK`` for
those that do not.
"""

from __future__ import annotations

from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from trackside_daemon.model.metric import Batch, Sample
from trackside_daemon.model.rank_process import RankProcess
from trackside_daemon.model.records import ENDED, ENDS, AccountUpdated, EarlierAttempts, Event, Record, RunState
from trackside_daemon.training import families as f
from trackside_daemon.training.whole_norms import Wholes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trackside.wire import Bye, Heartbeat, Hello, Identity, Pushes, ResourceUsage
    from trackside_daemon.model.finding import Stands
    from trackside_daemon.training.rank import End, Rank
    from trackside_daemon.training.verdict import Exit

_ORDER = ("running", "stalled", "starting", *ENDS)

MARKS_SECONDS = 900.0
"""How long an ended run's state, info and end stay, so that rules see the end."""

TEARDOWN_SECONDS = 30.0
"""How long the page waits for the exit of a process that atexit has said bye for: interpreter and CUDA are torn down."""

LOST_SECONDS = 300.0
"""How long the series of a run that was lost stay."""


class Process(NamedTuple):
    """What names a process on all machines: its pid and start time, and the boot that these are of."""

    pid: int
    start: int
    boot: str


def process_of(identity: Identity) -> Process:
    """The process that an identity is of."""
    return Process(identity.pid, identity.start, identity.boot)


class Session:
    """What the daemon knows of one client session.

    Attributes:
        process: Its own, so far as the pid is one that this machine counts.
        status: The state that it ended in, and *cause*; empty while it lives.
        ended_at: When that was, in Unix time.
        bye: What it said at its end.
        exit: How its process ended.
        waits_until: Its bye is open and its process lives: until then, in monotonic seconds, the page is not told.
        elsewhere: It speaks, and yet its pid is not here: its process lives in another pid namespace.
        k8s: Its pod, namespace and container.
        room: What it has said last of its shared memory and files, at *room_at* of its monotonic clock, in nanoseconds.
    """

    def __init__(self, run: Run, rank: Rank, identity: Identity) -> None:
        self.run = run
        self.rank = rank
        self.identity = identity
        self.process = process_of(identity)
        self.heard_at = self.ended_at = 0.0
        self.status = self.cause = ""
        self.bye: Bye | None = None
        self.exit: Exit | None = None
        self.waits_until: float | None = None
        self.elsewhere = False
        self.k8s = ("", "", "")
        self.room: ResourceUsage | None = None
        self.room_at = -inf

    def speak(self, samples: list[Sample]) -> Batch:
        """What its rank says."""
        return self.run.speak(self.identity.rank, samples)

    def learn(self, identity: Identity, k8s: tuple[str, str, str]) -> None:
        """Of what it says of itself again only its GPUs may be news."""
        self.identity = replace(self.identity, gpus=identity.gpus)
        self.k8s = k8s

    def look(self, said: Hello | Pushes | Heartbeat) -> list[Sample]:
        """What it says of its room, which may be older than what is known: a batch may come again behind a beat."""
        if said.room is None or said.clock.monotonic < self.room_at:
            return []
        self.room, self.room_at = said.room, said.clock.monotonic
        told = ((metric, getattr(said.room, name)) for name, metric in f.ROOM.items())
        return [Sample(metric, self.rank.labels, value) for metric, value in told if value is not None]

    def member(self) -> RankProcess:
        """Its process, for those who look at this machine."""
        one = self.identity
        pid = 0 if self.elsewhere else self.process.pid
        return RankProcess(
            *(self.run.name, one.run, self.run.attempt, one.rank, one.local_rank, one.job_id, pid, one.gpus),
            *self.k8s,
            room=self.room,
            peak_flops=self.rank.peak_flops,
        )


class Run:
    """One attempt of a run.

    Args:
        identity: That of its first session.
        name: As it is exported.
        attempt: Its number.
        stalls: Tells who of an attempt, by the run's id and its number, stands still; None while nobody does.
        before: What is known of the attempts before it.

    Attributes:
        source: The source name of its marks, and the beginning of its ranks'.
        live_until: Monotonic seconds when its ranks' series are forgotten; None while it lives.
        until: The same for its marks.
        forgotten: Its ranks' series have been.
        before: What is known of the attempts before it.
        wholes: What its ranks have told of their own parts.
    """

    def __init__(
        self,
        identity: Identity,
        name: str,
        attempt: int,
        stalls: Callable[[str, int], Stands | None] = lambda *_: None,
        before: EarlierAttempts = EarlierAttempts(),  # noqa: B008  it is frozen
    ) -> None:
        self.identity = identity
        self.before = before
        self.name = name
        self.attempt = attempt
        self.source = f"training:{identity.run}.{attempt}"
        self.ranks: dict[int, Rank] = {}
        self.live_until: float | None = None
        self.until: float | None = None
        self.forgotten = False
        self.wholes = Wholes(max(1, identity.world))
        self._stalls = stalls
        self._found = False
        self._told = ""

    @property
    def ended(self) -> bool:
        """Every rank that was seen has ended."""
        return all(rank.state in ENDED for rank in self.ranks.values())

    @property
    def state(self) -> str:
        """The ranks' states as one: what lives counts before what has ended, the worst end before the better."""
        return worst((rank.state for rank in self.ranks.values()), "starting")

    def stalls(self) -> Stands | None:
        """Tells who stands still; None while nobody does."""
        stands = self._stalls(self.identity.run, self.attempt)
        self._found = self._found or stands is not None
        return stands

    def look(self) -> list[Batch]:
        """The ranks whose state time alone has changed, and so perhaps the run's; nothing while nobody stood still."""
        stands = self.stalls()
        if not self._found:
            return []
        self._found = stands is not None
        news = [self.speak(number, rank.standing()) for number, rank in self.ranks.items() if rank.look(stands)]
        return [*news, *self.news()] if news else []

    def reckon(
        self, wall: float, monotonic: float, peak: Callable[[str, int], object], *, last: bool = False
    ) -> list[Batch]:
        """What of its time is lost by now; *peak* tells FLOP/s of a run's rank. For the *last* time all of it is kept."""
        batches = []
        for number, rank in self.ranks.items():
            ask = partial(peak, self.name, number) if rank.peak_flops is None else partial(float, rank.peak_flops)
            if rank.end is not None or last:
                news, account = rank.losses.end(wall if rank.end is None else rank.end.at, monotonic, ask)
            else:
                news, account = rank.losses.look(wall, monotonic, ask, stalled=rank.state == "stalled")
            records = [] if account is None else [AccountUpdated(self.identity.run, self.attempt, number, account)]
            if (news or records) and not self.forgotten:
                samples = rank.lost() if news else []
                batches.append(Batch(f"{self.source}:{number}", samples, until=self.live_until, records=records))
        return batches

    def after(self, wall: float) -> EarlierAttempts:
        """What the next attempt is to know of this one and those before, at *wall* in Unix seconds."""
        steps = [
            step for step in (self.before.step, *(rank.highest for rank in self.ranks.values())) if step is not None
        ]
        lost = {**self.before.lost, **{number: rank.losses.known for number, rank in self.ranks.items()}}
        return EarlierAttempts(lost, max(steps, default=None), self.standing().ended or wall)

    def news(self) -> list[Batch]:
        """Its marks, if it is in another state than they have told."""
        return [] if self.state == self._told else [self.marks()]

    def keep(self, now: float, linger: float) -> None:
        """When its series are forgotten, *linger* seconds after its end, if *now* in monotonic seconds it has ended."""
        self.live_until = self.until = None
        self.forgotten = False
        if self.ended:
            self.live_until = now + (LOST_SECONDS if self.state == "lost" else linger)
            self.until = max(self.live_until, now + MARKS_SECONDS)

    def standing(self) -> RunState:
        """Its state, as the history is told."""
        ranks = self.ranks.values()
        state = worst((rank.end.state if rank.end is not None else rank.state for rank in ranks), "starting")
        ends = [rank.end for rank in ranks if rank.end is not None]
        if len(ends) < len(ranks):
            return RunState(self.identity.run, self.attempt, state)
        causes = ", ".join(sorted({end.cause for end in ends} - {""}))
        return RunState(self.identity.run, self.attempt, state, causes, max((end.at for end in ends), default=None))

    def event(self, kind: str, time: float, rank: int | None = None, **fields: Any) -> Event:
        """Something that happened to it."""
        return Event(self.identity.run, self.attempt, time, kind, rank, fields=fields)

    def given_up(self, time: float) -> list[RunState]:
        """How it ends when its launcher begins another attempt while it lives; nothing when it has ended."""
        if self.standing().ended is not None:
            return []
        return [RunState(self.identity.run, self.attempt, "lost", "given up for another attempt", time)]

    def rank_ended(self, rank: int, end: End, exited: Exit | None) -> Event:
        """How a rank ended, as the history is told; with ``status`` or ``signal`` where the exit is known."""
        known = {} if exited is None else exited.fields()
        return self.event("rank_ended", end.at, rank, state=end.state, cause=end.cause, **known)

    def marks(self, *records: Record) -> Batch:
        """The run's state, info and ends, and what the history is told beside them."""
        identity = self.identity
        numbers = (str(self.attempt), str(identity.world))
        known = (identity.host, identity.git_commit, identity.framework, identity.job_id)
        samples = [Sample(f.RUN_INFO, (self.name, identity.run, *numbers, *known), 1.0)]
        self._told = self.state
        samples += [Sample(f.STATE, (self.name, state), float(state == self._told)) for state in f.STATES]
        samples += [
            Sample(f.ENDED_AT, rank.labels, rank.end.at)
            for rank in self.ranks.values()
            if rank.end is not None and rank.state in ENDED
        ]
        return Batch(self.source, samples, complete=True, until=self.until, records=[self.standing(), *records])

    def speak(self, rank: int, samples: list[Sample]) -> Batch:
        """What a rank says."""
        return Batch(f"{self.source}:{rank}", samples, until=self.live_until)

    def forget(self) -> list[Batch]:
        """Batches that take all its series away."""
        return [
            Batch(source, complete=True) for source in (self.source, *(f"{self.source}:{rank}" for rank in self.ranks))
        ]


def decisive(sessions: Iterable[Session]) -> Session:
    """Of ended sessions of a rank the one whose end is the rank's."""
    return min(sessions, key=lambda one: (_ORDER.index(one.status), not one.cause))


def worst(states: Iterable[str], default: str = "") -> str:
    """What lives counts before what has ended, the worst end before the better."""
    return min(set(states), key=_ORDER.index, default=default)
