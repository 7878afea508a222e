"""The runs that are alive or have just ended: their names, attempts, ranks and states.

Each method applies a message and returns the batches that follow from it. The file is longer than others: names, attempts and
the ends of runs depend on each other, so one class decides on them.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain

from trackside.wire import Bye, Heartbeat, Hello, Identity, Pushes, Totals
from trackside_daemon.model.columns import Columns
from trackside_daemon.model.metric import Batch, Sample
from trackside_daemon.model.rank_process import RankProcesses
from trackside_daemon.model.records import ENDED, EarlierAttempts, Record
from trackside_daemon.model.session import Owner, Process, correlation_of, process_of
from trackside_daemon.model.stall import Stall
from trackside_daemon.training.admission import Admission, PageLimits, bounded, numbered, pod
from trackside_daemon.training.attempts import AttemptNumbers
from trackside_daemon.training.end_state import Exit, is_open, verdict
from trackside_daemon.training.liveness import Liveness
from trackside_daemon.training.lost_time import CurrentStalls, RankLostTime
from trackside_daemon.training.missed_ends import MissedEnds
from trackside_daemon.training.moment import Moment
from trackside_daemon.training.rank import End, RankStatus
from trackside_daemon.training.run import MARKS_SECONDS, TEARDOWN_SECONDS, RankSession, RunStatus, decisive

log = logging.getLogger("trackside")


class Runs:
    """All runs until their series expire.

    Args:
        limits: Limits of what is exported at once.
        linger: Seconds for which the series of an ended run stay; may be changed at any time.
        liveness: Decides whether a silent process is gone.
        last_attempt: Returns the last attempt of a run from before this daemon and when it ended, None for a run that is
            alive; None for an unknown run.
        before: Returns the attempts before an attempt, by run id and number, of a run from before this daemon.
        peak: Returns the peak FLOP/s of a rank's GPUs, by the run's exported name and the rank, if known.
        processes: Receives the training processes of this machine at each tick.
        stalls: The stalls that an earlier daemon has found.
    """

    def __init__(
        self,
        limits: PageLimits,
        linger: float,
        liveness: Liveness | None = None,
        last_attempt: Callable[[str], tuple[int, float | None] | None] = lambda _: None,
        *,
        before: Callable[[str, int], EarlierAttempts] = lambda *_: EarlierAttempts(),
        peak: Callable[[str, int], object] = lambda *_: None,
        processes: RankProcesses | None = None,
        stalls: Iterable[Stall] = (),
    ) -> None:
        self.linger = linger
        self._limits = limits
        self._liveness = liveness or Liveness()
        self._numbers = AttemptNumbers(last_attempt)
        self._last_attempt = last_attempt
        self._before = before
        self._peak = peak
        self._processes = processes or RankProcesses()
        self._runs: dict[str, RunStatus] = {}
        self._admission = Admission(limits, self._runs.values())
        self._watched: set[Process] = set()
        self._missed = MissedEnds(MARKS_SECONDS)
        self._stalls = CurrentStalls(stalls)

    def open(
        self,
        session: RankSession | None,
        hello: Hello,
        now: Moment,
        attempt: int | None = None,
        owner: Owner = Owner(),  # noqa: B008  it is frozen
    ) -> tuple[RankSession | None, list[Batch]]:
        """Open a session, or apply a repeated hello.

        Args:
            session: The session, if it was opened before.
            hello: The message.
            now: When it arrived.
            attempt: The attempt that the session belongs to, if that is known from before this daemon.
            owner: Its owner, who also owns its run.

        Returns:
            The session, and the batches that follow; None if the session is over a limit.
        """
        batches: list[Batch] = []
        identity = self.bounded(hello.identity)
        if session is None or not session.attached:
            session, batches = self._enter(identity, now, attempt, owner, correlation=correlation_of(hello))
        if session is None:
            return None, batches
        revived = self._receive(session, now)
        if (process := process_of(hello.identity)) in self._watched:
            session.process = process
            session.elsewhere = session.claimed = False
        session.daemonic = hello.about is not None and hello.about.daemonic
        plan = None if hello.about is None else hello.about.profile
        session.update_identity(identity, pod(hello.about, self._limits.label_bytes), plan)
        before = session.rank.state
        samples = session.rank.open(session, hello) + session.update_room(hello)
        batches += [*revived, session.batch(samples)]
        if hello.about is not None and hello.about.auto and not session.run.is_auto:
            session.run.is_auto = True
            return session, [*batches, session.run.marks()]
        return session, batches if session.rank.state == before else [*batches, *session.run.changed_marks()]

    def push(
        self, session: RankSession, pushes: Pushes, pushed: Sequence[Columns], now: Moment, *, late: bool = False
    ) -> list[Batch]:
        """Apply pushed rows, decoded; *late* ones count in the totals but are not on the page."""
        batches = self._receive(session, now)
        session.rank.lost_time.reach(pushes.clock, pushed, now.wall)
        if late:
            return [*batches, session.batch(session.rank.count(session, pushes.totals))]
        before = session.rank.state
        samples = session.rank.push(session, pushes.clock, pushes.totals, pushed)
        samples += session.update_room(pushes) + session.rank.layers.samples(pushes.distributions)
        batches.append(session.batch(samples))
        return batches if session.rank.state == before else [*batches, *session.run.changed_marks()]

    def derive(self, session: RankSession, pushed: Sequence[Columns]) -> dict[RankSession, list[Columns]]:
        """Return, by session, the rows that follow for all ranks from what this one pushed: norms of the whole model."""
        return session.run.norms.add(session, session.identity.rank, pushed)

    def apply_derived(self, derived: dict[RankSession, list[Columns]]) -> list[Batch]:
        """Apply the result of `derive`."""
        return [session.batch(session.rank.derive(columns)) for session, columns in derived.items() if session.attached]

    def skip(self, session: RankSession, totals: Totals, now: Moment) -> list[Batch]:
        """Apply the totals that come with a known gap."""
        return [*self._receive(session, now), session.batch(session.rank.count(session, totals))]

    def beat(self, session: RankSession, beat: Heartbeat, now: Moment) -> list[Batch]:
        """Apply a sign of life, which revives a lost session.

        While the session's batches cannot be accepted, the beat carries the newest values, so that the page stays true.
        """
        batches = self._receive(session, now)
        before = session.rank.state
        samples = session.update_room(beat)
        if beat.totals is not None:
            samples += session.rank.report(session, beat.totals, beat)
        if samples:
            batches.append(session.batch(samples))
        return batches if session.rank.state == before else [*batches, *session.run.changed_marks()]

    def attempt(self, identity: Identity, since: float | None = None) -> int:
        """Return the attempt of a session that is not attached to a run.

        Args:
            identity: The session's identity, `bounded`.
            since: When the session began, in Unix seconds, if its messages arrive late; None for a session over a limit.
        """
        run = self._runs.get(identity.run)
        return self._numbers.of_stray(identity, run) if since is None else self._numbers.of_late(identity, run, since)

    def has_ended(self, run: str) -> bool:
        """Return whether a run, by its id, has ended, here or before this daemon; False for an unknown one.

        Raises:
            UnreadableError: The history cannot be read at the moment.
        """
        if (live := self._runs.get(run)) is not None:
            return live.ended
        last = self._last_attempt(run)
        return last is not None and last[1] is not None

    def exists(self, identity: Identity, session: RankSession | None) -> bool | None:
        """Return whether the process of a client exists; None if that cannot be observed."""
        hidden = process_of(identity) not in self._watched and (session is None or session.elsewhere)
        gone = None if hidden else self._liveness.is_gone(identity)
        return None if gone is None else not gone

    def is_lost(self, identity: Identity, silence: float) -> bool:
        """Return whether a client that has been silent for *silence* seconds is gone."""
        return process_of(identity) not in self._watched and self._liveness.is_lost(identity, silence)

    def bounded(self, identity: Identity) -> Identity:
        """Return an identity with texts short enough for labels and numbers that the history can store."""
        return bounded(identity, self._limits.label_bytes)

    def close(self, session: RankSession, bye: Bye, now: Moment) -> list[Batch]:
        """End a session by its bye, whose time is that of this machine."""
        batches = self._receive(session, now)
        batches.append(session.batch(session.rank.count(session, bye.totals)))
        session.bye = bye
        session.ended_at = bye.clock.wall / 1e9
        if is_open(bye) and session.process in self._watched:
            session.waits_until = now.monotonic + TEARDOWN_SECONDS
        return batches + self._end(session, now)

    def missed(
        self, identity: Identity, attempt: int, end: End, owner: Owner, now: Moment, *, dropped: int = 0
    ) -> list[Batch]:
        """Report the end of a rank that no daemon saw; *identity* is `bounded`, and its run is not alive here.

        Its client has dropped so many values.
        """
        name = self.name(identity, owner)
        if any(run.name == name for run in self._runs.values()):
            return []
        return self._missed.end(identity, name, attempt, end, owner=owner, now=now, dropped=dropped)

    def name(self, identity: Identity, owner: Owner) -> str:
        """Return the name of a session that is not exported: one that no run of another owner on the page has."""
        others = self.names_of_others(owner)
        return next(name for name in numbered(identity.name, self._limits.label_bytes) if name not in others)

    def names_of_others(self, owner: Owner) -> set[str]:
        """Return the names of all runs on the page that are not this owner's."""
        return {run.name for run in chain(self._runs.values(), self._missed.runs()) if run.owner.id != owner.id}

    def watch(self, process: Process) -> None:
        """Expect `exited` for this process, so that its silence means nothing."""
        self._watched.add(process)

    def exited(self, process: Process, ended: Exit, at: float, now: Moment) -> list[Batch]:
        """Apply the exit of a watched process, *at* in Unix seconds."""
        self._watched.discard(process)
        batches = []
        for session in [session for session in self._sessions() if session.process == process]:
            session.exit = ended
            session.ended_at = session.ended_at or at
            batches += self._settle(session, now)
        return batches

    def accept_stalls(self, stalls: Iterable[Stall]) -> None:
        """Queue what detectors have found, for the next tick. Any thread may call it."""
        self._stalls.accept(stalls)

    def tick(self, now: Moment) -> list[Batch]:
        """Once a second: apply stalls, end sessions whose process is gone, and forget runs whose series expire."""
        batches: list[Batch] = []
        for session in list(self._sessions()):
            silence = now.monotonic - session.received_at
            if session.waits_until is not None and now.monotonic > session.waits_until:
                batches += self._settle(session, now)
            elif session.status or session.process in self._watched:  # a watched process is reported by its exit
                continue
            elif self._liveness.is_lost(session.identity, silence, elsewhere=session.elsewhere):
                batches += self._lose(session, now)
        for run_id, attempt in self._stalls.apply():
            if (stalled := self._runs.get(run_id)) is not None and stalled.attempt == attempt:
                batches += stalled.apply_stall(self._stalls.get(run_id, attempt))
        for run in list(self._runs.values()):
            batches += run.account(now.wall, now.monotonic, self._peak)
            if run.live_until is not None and now.monotonic > run.live_until:
                run.forgotten = True  # its series no longer count towards the limits
            if run.until is not None and now.monotonic > run.until:
                batches += self._drop(run)
        here = (one for one in self._sessions() if not one.status and self._liveness.is_here(one.identity))
        self._processes.set(tuple(session.rank_process() for session in here))
        return batches

    def move_clock(self, seconds: float) -> list[Batch]:
        """Apply that this machine's clock was set forward by so many seconds; return what follows.

        What a live run has of its past is from then on as by the new time, so that no duration has the difference.
        """
        live = [run for run in self._runs.values() if not run.ended]
        for run in live:
            run.move_clock(seconds)
        return [run.marks() for run in live if any(rank.end is not None for rank in run.ranks.values())]

    def rejected(self) -> list[Sample]:
        """Return how many series are over a limit, by reason."""
        return self._admission.rejections.samples()

    def _sessions(self) -> Iterator[RankSession]:
        for run in self._runs.values():
            yield from run.sessions

    def _receive(self, session: RankSession, now: Moment) -> list[Batch]:
        """Note a message of a session, and return what follows if the session counted as lost."""
        session.received_at = now.monotonic
        if session.status != "lost" or session.exit is not None:  # a process that has exited cannot come back
            return []
        name, rank = session.rank.labels
        log.info("run %s rank %s is back", name, rank, extra=session.run.log_fields(rank))
        session.status = ""
        session.ended_at = 0.0
        session.rank.revive()
        return self._changed(session, now)

    def _enter(
        self, identity: Identity, now: Moment, attempt: int | None, owner: Owner, *, correlation: str
    ) -> tuple[RankSession | None, list[Batch]]:
        """Attach a new session to its attempt, or open an attempt for it; None if the session is not exported."""
        if not self._admission.session(identity, owner):
            return None, []
        run = self._runs.get(identity.run)
        batches = self._bury(identity, now)
        if run is not None and identity.attempt < run.identity.attempt:
            return None, batches  # a rank of an attempt that its launcher has given up
        if run is not None and attempt is not None and attempt < run.attempt:
            return None, batches  # a rank from before the run was resumed
        if run is None or self._numbers.is_new(run, identity):
            run, opened = self._open(identity, run, now, attempt, owner, correlation=correlation)
            batches += opened
            if run is None:
                return None, batches
        rank = run.ranks.get(identity.rank)
        if rank is None:
            lost_time = RankLostTime(run.before, identity.rank)
            admit = partial(self._admission.key, run)
            rank = run.ranks[identity.rank] = RankStatus(
                run.name, identity.rank, admit, lost_time, layers=self._limits.layers
            )
        if rank.state in ENDED:
            run.detach_sessions(rank)
            rank.rejoin()
        rank.apply_stall(run.stall)
        run.owner = owner._replace(verified=owner.verified or run.owner.verified)
        session = run.add_session(rank, identity)
        if session.process not in self._watched:
            session.elsewhere = self._liveness.is_gone(identity) is True
            session.claimed = not self._liveness.is_of(identity, owner.id)
        return session, batches + self._changed(session, now)

    def _open(
        self,
        identity: Identity,
        before: RunStatus | None,
        now: Moment,
        attempt: int | None,
        owner: Owner,
        *,
        correlation: str,
    ) -> tuple[RunStatus | None, list[Batch]]:
        """Open a run, or an attempt that replaces the one *before*; None if there are too many."""
        batches: list[Batch] = []
        admitted, leaving = self._admission.run(identity, before, owner, now.monotonic)
        if not admitted:
            return None, []
        if leaving is not None:
            leaving.displaced = True
            batches += self._drop(leaving)
        continues = attempt is not None
        if attempt is None:
            attempt, continues = self._numbers.next(identity, before)
        if before is not None:
            batches += [*before.account(now.wall, now.monotonic, self._peak, last=True), *self._drop(before)]
        earlier = self._before(identity.run, attempt) if before is None else before.as_earlier(now.wall)
        name, evicted = self._name(identity, owner)
        batches += evicted
        if (ended := self._admission.ended_run()) is not None:
            batches += self._drop(ended)
        run = RunStatus(identity, name, attempt, earlier, self._stalls.get(identity.run, attempt))
        run.owner, run.correlation = owner, correlation
        self._runs[identity.run] = run
        verb = "continues" if continues else "begins"
        log.info("run %s (id %s, attempt %d) %s", name, identity.run, attempt, verb, extra=run.log_fields())
        if not continues:
            kind = "run_restarted" if attempt > 0 else "run_started"
            given_up = [] if before is None else before.given_up(now.wall)
            records: list[Record] = [*given_up, run.event(kind, now.wall)]
            batches.append(Batch(run.source, records=records, subject=run.ref))
        return run, batches

    def _bury(self, identity: Identity, now: Moment) -> list[Batch]:
        """End the sessions of a run whose processes are gone, if a rank among them opens again.

        The run was killed and begins anew before the daemon has noticed the end of its processes.
        """
        run = self._runs.get(identity.run)
        if run is None or identity.rank not in run.ranks:
            return []
        of_run = list(run.sessions)
        before = [session for session in of_run if session.identity.rank == identity.rank]
        batches = [self._settle(session, now) for session in before if session.waits_until is not None]
        if not all(session.status for session in before):
            processes = {session.process: session.identity for session in of_run if not session.status}
            gone = {process for process, one in processes.items() if self._liveness.is_gone(one)}
            if any(session.process in gone for session in before):
                ended = [session for session in of_run if not session.status and session.process in gone]
                batches += [self._lose(session, now) for session in ended]
        return [*chain.from_iterable(batches)]

    def _name(self, identity: Identity, owner: Owner) -> tuple[str, list[Batch]]:
        """Return the exported name of a new run, and batches that remove the series of runs that it replaces.

        An ended run of the same name is replaced at once. If a live run or another owner's run has the name, a run of one node
        gets a number after its name. A run of several nodes replaces the live one, since their daemons could not agree on a
        number. Only runs of the same owner are replaced.
        """
        several_nodes = identity.world > identity.local_world
        others = self.names_of_others(owner)
        for name in numbered(identity.name, self._limits.label_bytes):
            same = next((run for run in self._runs.values() if run.name == name), None)
            if name not in others and (same is None or same.ended or several_nodes):
                break
        batches = [] if same is None else self._drop(same)
        return name, batches + self._missed.evict(name)

    def _settle(self, session: RankSession, now: Moment) -> list[Batch]:
        """End a session; the page waits no longer for the exit of its process."""
        session.waits_until = None
        return self._end(session, now)

    def _lose(self, session: RankSession, now: Moment) -> list[Batch]:
        """End a session whose process is gone, or silent for too long, by an unknown cause."""
        session.ended_at = now.wall
        return self._end(session, now)

    def _end(self, session: RankSession, now: Moment) -> list[Batch]:
        """End a session, by all that is known of its end, and with its last session the rank."""
        waits = session.waits_until is not None
        session.status, session.cause = verdict(session.bye, session.exit, daemonic=session.daemonic, waits=waits)
        run, rank = session.run, session.rank
        sessions = run.sessions_of(rank)
        if not all(one.status for one in sessions):
            return []
        last = decisive(sessions)
        end, before = End(last.status, last.cause, session.ended_at), rank.end
        records: list[Record] = []
        if before is None or before[:2] != end[:2]:
            rank.end = end
            records.append(run.rank_ended(session.identity.rank, end, last.exit))
        if any(one.waits_until is not None for one in sessions):
            # The history gets the end at once, since this daemon may be killed too. The page waits for the exit.
            return [Batch("training", records=[run.run_state(), *records], subject=run.ref)]
        if not records and rank.state == end.state:
            return []
        rank.state = end.state
        level = logging.WARNING if end.state in {"failed", "lost"} else logging.INFO
        why = f": {end.cause}" if end.cause else ""
        fields = run.log_fields(rank.labels[1])
        log.log(level, "run %s rank %s %s%s", run.name, rank.labels[1], end.state, why, extra=fields)
        return self._changed(session, now, *records)

    def _changed(self, session: RankSession, now: Moment, *records: Record) -> list[Batch]:
        """Return the states of a rank that began, ended or came back, and of its run; set when their series expire."""
        run, before = session.run, session.run.until
        run.set_expiry(now.monotonic, self.linger)
        if run.until is not None:
            text, id_ = "run %s (id %s, attempt %d) ended: %s", run.identity.run
            log.info(text, run.name, id_, run.attempt, run.state, extra=run.log_fields())
        ranks, ended = run.ranks, None
        if run.until == before:
            ranks = {session.identity.rank: session.rank}
            ended = session.rank if session.rank.state in ENDED else None
        states = [run.batch(number, rank.state_samples()) for number, rank in ranks.items()]
        return [*states, run.marks(*records, ended=ended)]

    def _drop(self, run: RunStatus) -> list[Batch]:
        """Forget a run and its sessions; return batches that remove all its series."""
        self._runs.pop(run.identity.run, None)
        return run.forget()
