"""One attempt of a run: its ranks and sessions, its state and its series.

An attempt has several sources: ``training:RUN.ATTEMPT`` for the series that outlive the ranks, ``training:RUN.ATTEMPT:RANK``
for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from math import inf
from typing import Any

from msgspec.structs import replace

from trackside.wire import Bye, Heartbeat, Hello, Identity, ProfilePlan, Pushes, ResourceUsage
from trackside_daemon.model.families import training as f
from trackside_daemon.model.log_fields import log_fields
from trackside_daemon.model.metric import Batch, Sample
from trackside_daemon.model.rank_process import RankProcess
from trackside_daemon.model.records import ENDED, ENDS, AccountUpdated, EarlierAttempts, Event, Record, RunState
from trackside_daemon.model.session import Owner, RankRef, process_of
from trackside_daemon.model.stall import Stall
from trackside_daemon.training.end_state import Exit
from trackside_daemon.training.rank import End, RankStatus, SessionReports
from trackside_daemon.training.whole_norms import WholeNorms

MARKS_SECONDS = 900.0  # how long state, info and end of an ended run stay on the page, so that rules see the end

# How long the page waits for the exit of a process after an atexit bye: interpreter and CUDA are torn down.
TEARDOWN_SECONDS = 30.0

LOST_SECONDS = 300.0  # how long the series of a lost run stay


# States by precedence: a live rank counts before an ended one, the worst end before the better.
_ORDER = ("running", "stalled", "starting", *ENDS)


class RankSession(SessionReports):
    """One client session of a rank. Ingest keeps it with the session and passes it to `Runs`.

    Attributes:
        attached: Its run and its rank still count it; otherwise the session has to open again.
        process: The client's process, as far as its pid is one of this machine's process table.
        status: The state that it ended in, and *cause*; empty while it is alive.
        ended_at: When that was, in Unix seconds.
        bye: The client's own report of its end.
        exit: The end of its process.
        waits_until: The bye may still be overruled by the exit of the process. The page waits for that until this time, in
            monotonic seconds.
        daemonic: Its process is one that its parent ends by SIGTERM.
        elsewhere: The client is alive but its pid does not exist here: its process has its own pid namespace.
        claimed: Nothing but the client's word connects it with its pid, which may be another user's process.
        k8s: Pod, namespace and container.
        plan: When to profile the run.
        room: The last report of its shared memory and files, at *room_at* nanoseconds of its monotonic clock.
    """

    def __init__(self, run: RunStatus, rank: RankStatus, identity: Identity) -> None:
        super().__init__()
        self.attached = True
        self.run = run
        self.rank = rank
        self.identity = identity
        self.process = process_of(identity)
        self.received_at = 0.0
        self.ended_at = 0.0
        self.status = ""
        self.cause = ""
        self.bye: Bye | None = None
        self.exit: Exit | None = None
        self.waits_until: float | None = None
        self.daemonic = False
        self.elsewhere = False
        self.claimed = False
        self.k8s = ("", "", "")
        self.plan: ProfilePlan | None = None
        self.room: ResourceUsage | None = None
        self.room_at = -inf

    def batch(self, samples: list[Sample]) -> Batch:
        """Return a batch with samples of its rank."""
        return self.run.batch(self.identity.rank, samples)

    def update_identity(self, identity: Identity, k8s: tuple[str, str, str], plan: ProfilePlan | None) -> None:
        """Apply a hello, which may be a repeated one: of the identity only the GPUs may have changed."""
        self.identity = replace(self.identity, gpus=identity.gpus)
        self.k8s = k8s
        self.plan = plan

    def update_room(self, message: Hello | Pushes | Heartbeat) -> list[Sample]:
        """Apply the message's report of shared memory and files, unless a newer one is known."""
        # A batch may be sent again after a beat with a newer report.
        if message.room is None or message.clock.monotonic < self.room_at:
            return []
        self.room = message.room
        self.room_at = message.clock.monotonic
        values = ((metric, getattr(message.room, name)) for name, metric in f.ROOM.items())
        return [Sample(metric, self.rank.labels, value) for metric, value in values if value is not None]

    def rank_process(self) -> RankProcess:
        """Return its process for the collectors."""
        identity = self.identity
        pod, namespace, container = self.k8s
        return RankProcess(
            run=self.run.name,
            run_id=identity.run,
            attempt=self.run.attempt,
            rank=identity.rank,
            local_rank=identity.local_rank,
            job_id=identity.job_id,
            pid=0 if self.elsewhere or self.claimed else self.process.pid,
            gpus=identity.gpus,
            k8s_pod=pod,
            k8s_namespace=namespace,
            k8s_container=container,
            room=self.room,
            peak_flops=self.rank.peak_flops,
            plan=self.plan,
            owner=self.run.owner.id,
        )


class RunStatus:
    """One attempt of a run.

    Args:
        identity: The identity of its first session.
        name: The exported name.
        attempt: The attempt's number.
        before: The attempts before it.
        stall: The stalled ranks that an earlier daemon or a detector has found.

    Attributes:
        ref: The reference that its batches carry.
        sessions: The sessions of all ranks, in the order in which they opened.
        source: The source name of its marks, and the prefix of its ranks' source names.
        live_until: When its ranks' series expire, in monotonic seconds; None while the run is alive.
        until: When its marks expire.
        owner: The owner of its sessions.
        forgotten: Its ranks' series have expired.
        correlation: Id by which other systems refer to its job; empty for none.
        displaced: It has left the page for a run of another owner.
        is_auto: Trackside has found some of its values without the training code's help.
        before: The attempts before it.
        norms: Norms over all ranks, from the parts that the ranks push.
        keys: Keys that have series in `families.training.VALUE`.
        value_series: Number of these series.
        value_ranks: Number of ranks that have some.
    """

    def __init__(
        self,
        identity: Identity,
        name: str,
        attempt: int,
        before: EarlierAttempts = EarlierAttempts(),  # noqa: B008  it is frozen
        stall: Stall | None = None,
    ) -> None:
        self.owner = Owner()
        self.correlation = ""
        self.displaced = self.is_auto = False
        self.identity = identity
        self.before = before
        self.name = name
        self.attempt = attempt
        self.ref = RankRef(identity.run, attempt)
        self.source = f"training:{identity.run}.{attempt}"
        self.ranks: dict[int, RankStatus] = {}
        self.sessions: list[RankSession] = []
        self.live_until: float | None = None
        self.until: float | None = None
        self.forgotten = False
        self.norms: WholeNorms[RankSession] = WholeNorms(max(1, identity.world))  # a client may send 0
        self.stall = stall
        self.keys: set[str] = set()
        self.value_series = self.value_ranks = 0
        self._exported_state = ""

    @property
    def ended(self) -> bool:
        """True once every rank that was seen has ended."""
        return worst([rank.state for rank in self.ranks.values()], "finished") in ENDED

    @property
    def state(self) -> str:
        """The state of all ranks together."""
        return worst([rank.state for rank in self.ranks.values()], "starting")

    def log_fields(self, rank: str | None = None) -> dict[str, Any]:
        """Return the fields of a log line about it, or about a rank."""
        return log_fields(self.identity.run, self.name, rank, correlation_id=self.correlation)

    def add_session(self, rank: RankStatus, identity: Identity) -> RankSession:
        """Add a session of a rank."""
        session = RankSession(self, rank, identity)
        rank.add(session)
        self.sessions.append(session)
        return session

    def sessions_of(self, rank: RankStatus) -> list[RankSession]:
        """Return the sessions of a rank, in the order in which they opened."""
        return [session for session in self.sessions if session.rank is rank]

    def detach_sessions(self, rank: RankStatus) -> None:
        """Remove the sessions of a rank that has ended."""
        for session in self.sessions_of(rank):
            session.attached = False
        self.sessions = [session for session in self.sessions if session.attached]

    def apply_stall(self, stall: Stall | None) -> list[Batch]:
        """Apply which ranks are stalled; None for no rank. Return the states that change."""
        self.stall = stall
        changed = [number for number, rank in self.ranks.items() if rank.apply_stall(stall)]
        batches = [self.batch(number, self.ranks[number].state_samples()) for number in changed]
        return [*batches, *self.changed_marks()] if batches else []

    def account(
        self, wall: float, monotonic: float, peak: Callable[[str, int], object], *, last: bool = False
    ) -> list[Batch]:
        """Update the lost time of each rank; *peak* returns FLOP/s of a run's rank. The *last* call stores all of it."""
        batches = []
        for number, rank in self.ranks.items():
            measured = partial(peak, self.name, number) if rank.peak_flops is None else partial(float, rank.peak_flops)
            if rank.end is not None or last:
                end = wall if rank.end is None else rank.end.at
                changed, account = rank.lost_time.end(end, monotonic, measured)
            else:
                changed, account = rank.lost_time.tick(wall, monotonic, measured, stalled=rank.state == "stalled")
            records = [] if account is None else [AccountUpdated(self.identity.run, self.attempt, number, account)]
            if (changed or records) and not self.forgotten:
                batch = self.batch(number, rank.lost_samples() if changed else [])
                batch.records = records
                batches.append(batch)
        return batches

    def as_earlier(self, wall: float) -> EarlierAttempts:
        """Return this attempt and those before it, as the next attempt needs them, at *wall* in Unix seconds."""
        highest = (self.before.step, *(rank.highest for rank in self.ranks.values()))
        lost = {**self.before.lost, **{number: rank.lost_time.current for number, rank in self.ranks.items()}}
        step = max((step for step in highest if step is not None), default=None)
        return EarlierAttempts(lost, step, self.run_state().ended or wall)

    def move_clock(self, seconds: float) -> None:
        """Move what it has of its past, since this machine's clock was set forward by so many seconds."""
        if self.before.ended is not None:
            self.before = self.before._replace(ended=self.before.ended + seconds)
        for session in self.sessions:
            session.ended_at += seconds if session.ended_at else 0.0
        for rank in self.ranks.values():
            rank.move_clock(seconds)

    def changed_marks(self) -> list[Batch]:
        """Return its marks if its state is not the exported one."""
        return [] if self.state == self._exported_state else [self.marks()]

    def set_expiry(self, now: float, linger: float) -> None:
        """Set when its series expire: *linger* seconds after its end, if it has ended at *now* in monotonic seconds."""
        self.live_until = None
        self.until = None
        self.forgotten = False
        if self.ended:
            self.live_until = now + (LOST_SECONDS if self.state == "lost" else linger)
            self.until = max(self.live_until, now + MARKS_SECONDS)

    def run_state(self) -> RunState:
        """Return its state as the history stores it."""
        ranks = self.ranks.values()
        state = worst([rank.state if rank.end is None else rank.end.state for rank in ranks], "starting")
        if state not in ENDED:
            return RunState(self.identity.run, self.attempt, state)
        ends = [rank.end for rank in ranks if rank.end is not None]
        causes = ", ".join(sorted({end.cause for end in ends} - {""}))
        return RunState(self.identity.run, self.attempt, state, causes, max((end.at for end in ends), default=None))

    def event(self, kind: str, time: float, rank: int | None = None, **fields: Any) -> Event:
        """Return an event of the run or of one rank."""
        return Event(self.identity.run, self.attempt, time, kind, rank, fields=fields)

    def given_up(self, time: float) -> list[RunState]:
        """Return its end for a launcher that begins another attempt while this one is alive; nothing if it has ended."""
        if self.run_state().ended is not None:
            return []
        return [RunState(self.identity.run, self.attempt, "lost", "given up for another attempt", time)]

    def rank_ended(self, rank: int, end: End, exited: Exit | None) -> Event:
        """Return the event of a rank's end, with ``status`` or ``signal`` if the exit is known."""
        details = {} if exited is None else exited.fields()
        return self.event("rank_ended", end.at, rank, state=end.state, cause=end.cause, **details)

    def marks(self, *records: Record, ended: RankStatus | None = None) -> Batch:
        """Return the run's state, info and ends, with further records for the history.

        Args:
            records: The further records.
            ended: The only rank whose end is new, since that of each of a thousand ranks must not cost as much as all; None if
                others may differ.
        """
        identity = self.identity
        info = (
            self.name,
            identity.run,
            str(self.attempt),
            str(identity.world),
            identity.host,
            identity.git_commit,
            identity.framework,
            identity.job_id,
            "auto" if self.is_auto else "",
            self.owner.user,
        )
        self._exported_state = self.state
        samples = [Sample(f.RUN_INFO, info, 1.0)]
        samples += [Sample(f.STATE, (self.name, state), float(state == self._exported_state)) for state in f.STATES]
        samples += [
            Sample(f.ENDED_AT, rank.labels, rank.end.at)
            for rank in (self.ranks.values() if ended is None else [ended])
            if rank.end is not None and rank.state in ENDED
        ]
        return Batch(
            self.source,
            samples,
            complete=ended is None,
            until=self.until,
            records=[self.run_state(), *records],
            subject=self.ref,
        )

    def batch(self, rank: int, samples: list[Sample]) -> Batch:
        """Return a batch with samples of a rank."""
        subject = self.ref._replace(rank=rank)
        return Batch(f"{self.source}:{rank}", samples, until=self.live_until, subject=subject)

    def forget(self) -> list[Batch]:
        """Detach its sessions, and return batches that remove all its series."""
        for session in self.sessions:
            session.attached = False
        ranks = (
            Batch(f"{self.source}:{rank}", complete=True, subject=self.ref._replace(rank=rank)) for rank in self.ranks
        )
        return [Batch(self.source, complete=True, subject=self.ref), *ranks]


def decisive(sessions: Iterable[RankSession]) -> RankSession:
    """Return the session, of a rank's ended ones, whose end is the rank's."""
    return min(sessions, key=lambda session: (_ORDER.index(session.status), not session.cause))


def worst(states: Iterable[str], default: str = "") -> str:
    """Return the state of several ranks together."""
    return min(set(states), key=_ORDER.index, default=default)
