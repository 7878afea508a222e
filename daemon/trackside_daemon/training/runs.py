"""The runs that live or have just ended: their names, attempts, ranks and states.

Each method takes what a client said and returns the batches that follow from it.
"""

from __future__ import annotations

import logging
from itertools import chain
from typing import TYPE_CHECKING

from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import ENDED, EarlierAttempts
from trackside_daemon.training.limits import Rejections, bounded, cut, pod
from trackside_daemon.training.liveness import Liveness
from trackside_daemon.training.lost_time import Losses
from trackside_daemon.training.missed_ends import Missed
from trackside_daemon.training.rank import End, Rank
from trackside_daemon.training.run import MARKS_SECONDS, TEARDOWN_SECONDS, Run, Session, decisive, process_of
from trackside_daemon.training.verdict import is_open, verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside.wire import Block, Bye, Heartbeat, Hello, Identity, Pushes, Totals
    from trackside_daemon.model.finding import Stands
    from trackside_daemon.model.metric import Sample
    from trackside_daemon.model.rank_process import RankProcess
    from trackside_daemon.model.records import Record
    from trackside_daemon.training.limits import Limits
    from trackside_daemon.training.moment import Moment
    from trackside_daemon.training.run import Process
    from trackside_daemon.training.verdict import Exit

log = logging.getLogger("trackside")


class Runs:
    """All runs that this daemon has heard of and not yet forgotten.

    Args:
        limits: What may be exported at once.
        linger: Seconds for which an ended run's series stay; may be changed at any time.
        liveness: Tells whether a silent process is gone.
        past: Tells, of a run that was before this daemon, the number of its last attempt and when it ended, None for not.
        stalls: Tells who of an attempt, by its run's id and its number, stands still; None while nobody does.
        before: Tells what was known before an attempt, by its run's id and its number, of a run that was before this daemon.
        peak: Tells FLOP/s that the GPUs of a rank can do at most, by its run's name.

    Attributes:
        members: The processes of this machine that train, as of the last tick; for other threads to read.
    """

    def __init__(
        self,
        limits: Limits,
        linger: float,
        liveness: Liveness | None = None,
        past: Callable[[str], tuple[int, float | None] | None] = lambda _: None,
        stalls: Callable[[str, int], Stands | None] = lambda *_: None,
        *,
        before: Callable[[str, int], EarlierAttempts] = lambda *_: EarlierAttempts(),
        peak: Callable[[str, int], object] = lambda *_: None,
    ) -> None:
        self.linger = linger
        self.members: tuple[RankProcess, ...] = ()
        self._limits = limits
        self._liveness = liveness or Liveness()
        self._past, self._stalls, self._before, self._peak = past, stalls, before, peak
        self._runs: dict[str, Run] = {}
        self._sessions: dict[bytes, Session] = {}
        self._watched: set[Process] = set()
        self._missed = Missed(MARKS_SECONDS)
        self._rejections = Rejections()

    def hello(self, session: bytes, hello: Hello, now: Moment, attempt: int | None = None) -> list[Batch]:
        """A session opens, or tells all again to a daemon that may have missed it.

        Args:
            session: Its id.
            hello: What it says.
            now: When it arrived.
            attempt: The one that it is known to belong to, from before this daemon.
        """
        batches = [] if session in self._sessions else self._enter(session, self.bounded(hello.identity), now, attempt)
        known, revived = self._hear(session, now)
        if known is None:
            return batches
        if (process := process_of(hello.identity)) in self._watched:
            known.process, known.elsewhere = process, False
        known.learn(self.bounded(hello.identity), pod(hello.about, self._limits.label_bytes))
        before = known.rank.state
        batches += [*revived, known.speak(known.rank.greet(session, hello) + known.look(hello))]
        return batches if known.rank.state == before else [*batches, *known.run.news()]

    def pushes(self, session: bytes, pushes: Pushes, now: Moment, *, late: bool = False) -> list[Batch]:
        """Steps were pushed; those that come *late* count, but are no news.

        Raises:
            WireError: A block's columns do not fit each other; nothing of the message is taken.
        """
        blocks = [(block.keys, *block.columns()) for block in pushes.blocks]
        known, batches = self._hear(session, now)
        if known is None:
            return []
        known.rank.losses.reach(pushes.clock, (columns[1:3] for columns in blocks), now.wall)
        if late:
            return [*batches, known.speak(known.rank.count(session, pushes.totals))]
        before = known.rank.state
        samples = known.rank.push(session, pushes.clock, pushes.totals, blocks)
        batches.append(known.speak(samples + known.look(pushes)))
        return batches if known.rank.state == before else [*batches, *known.run.news()]

    def whole(self, session: bytes, pushes: Pushes) -> tuple[list[Batch], dict[bytes, list[Block]]]:
        """What is known of all ranks once this was pushed: for the page, and by session as if it had pushed it."""
        known = self._sessions.get(session)
        made = {} if known is None else known.run.wholes.take(session, known.identity.rank, pushes.blocks)
        return [one.speak(one.rank.learn(some)) for id_, some in made.items() if (one := self._sessions.get(id_))], made

    def skip(self, session: bytes, totals: Totals, now: Moment) -> list[Batch]:
        """The client had to drop batches: only its totals come."""
        known, batches = self._hear(session, now)
        return [] if known is None else [*batches, known.speak(known.rank.count(session, totals))]

    def beat(self, session: bytes, beat: Heartbeat, now: Moment) -> list[Batch]:
        """A sign of life; one from a session that was thought lost brings it back.

        While its batches cannot be taken, it tells the newest values, so that the page stays true.
        """
        known, batches = self._hear(session, now)
        if known is None:
            return batches
        before, samples = known.rank.state, known.look(beat)
        if beat.totals is not None:
            samples += known.rank.tell(session, beat.totals, beat)
        if samples:
            batches.append(known.speak(samples))
        return batches if known.rank.state == before else [*batches, *known.run.news()]

    def place(self, session: bytes) -> tuple[str, int] | None:
        """The exported name of a session's run, and its attempt; None when it is not known here."""
        known = self._sessions.get(session)
        return None if known is None else (known.run.name, known.run.attempt)

    def attempt(self, identity: Identity, since: float | None = None) -> int:
        """The attempt that a session belongs to which is not known here.

        Args:
            identity: Its own, `bounded`.
            since: When it began, in Unix seconds, if it is told late: it belongs to the last attempt unless that had
                ended by then. None if it is over a limit.
        """
        run = self._runs.get(identity.run)
        if since is not None:
            past = self._past(identity.run) if run is None else (run.attempt, run.standing().ended)
            number, ended = past or (0, None)
            return max(identity.attempt, number + (ended is not None and since > ended))
        if run is None or self._is_new_attempt(run, identity):
            return self._next_attempt(identity, run)[0]
        return min(run.attempt, identity.attempt) if identity.attempt < run.identity.attempt else run.attempt

    def is_lost(self, identity: Identity, silence: float) -> bool:
        """Whether a client is gone that has said nothing for *silence* seconds."""
        return process_of(identity) not in self._watched and self._liveness.is_lost(identity, silence)

    def bounded(self, identity: Identity) -> Identity:
        """The same with every text short enough for a label, and every number one that can be kept."""
        return bounded(identity, self._limits.label_bytes)

    def bye(self, session: bytes, bye: Bye, now: Moment, offset: float = 0.0) -> list[Batch]:
        """A session ends by its own word; its clock is *offset* seconds behind this machine's."""
        known, batches = self._hear(session, now)
        if known is None:
            return []
        batches.append(known.speak(known.rank.count(session, bye.totals)))
        known.bye, known.ended_at = bye, bye.clock.wall / 1e9 + offset
        if is_open(bye) and known.process in self._watched:
            known.waits_until = now.monotonic + TEARDOWN_SECONDS
        return batches + self._end(known, now)

    def missed(self, identity: Identity, attempt: int, end: End, now: Moment) -> list[Batch]:
        """A rank of a run that is not here has ended, as is known only now; *identity* is `bounded`."""
        live = {run.name for run in self._runs.values()}
        return self._missed.end(identity, attempt, end, live=live, wall=now.wall, monotonic=now.monotonic)

    def watch(self, process: Process) -> None:
        """The end of this process will be told with `exited`: its silence means nothing."""
        self._watched.add(process)

    def exited(self, process: Process, ended: Exit, at: float, now: Moment) -> list[Batch]:
        """A process that was watched is over, since *at* in Unix time."""
        self._watched.discard(process)
        batches = []
        for known in [one for one in self._sessions.values() if one.process == process]:
            known.exit, known.ended_at = ended, known.ended_at or at
            batches += self._settle(known, now)
        return batches

    def tick(self, now: Moment) -> list[Batch]:
        """Once a second: finds who is lost or stands still, and forgets runs that ended long ago."""
        batches: list[Batch] = []
        for known in list(self._sessions.values()):
            silence = now.monotonic - known.heard_at
            if known.waits_until is not None and now.monotonic > known.waits_until:
                batches += self._settle(known, now)
            elif known.status or known.process in self._watched:
                continue
            elif self._liveness.is_lost(known.identity, silence, elsewhere=known.elsewhere):
                batches += self._lose(known, now)
        for run in list(self._runs.values()):
            batches += [*run.look(), *run.reckon(*now, self._peak)]
            if run.live_until is not None and now.monotonic > run.live_until:
                run.forgotten = True  # its series crowd nobody out
            if run.until is not None and now.monotonic > run.until:
                batches += self._drop(run)
        here = (one for one in self._sessions.values() if not one.status and self._liveness.is_here(one.identity))
        self.members = tuple(one.member() for one in here)
        return batches

    def rejected(self) -> list[Sample]:
        """How many series are over a limit, by reason."""
        return self._rejections.samples()

    def _hear(self, session: bytes, now: Moment) -> tuple[Session | None, list[Batch]]:
        """The session, and what follows when it had been thought lost."""
        known = self._sessions.get(session)
        if known is None:
            return None, []
        known.heard_at = now.monotonic
        if known.status != "lost" or known.exit is not None:
            return known, []
        log.info("run %s rank %s is back", known.run.name, known.rank.labels[1])
        known.status, known.ended_at = "", 0.0
        known.rank.revive()
        return known, self._changed(known, now)

    def _enter(self, session: bytes, identity: Identity, now: Moment, attempt: int | None) -> list[Batch]:
        """Find the attempt that a new session belongs to, or open one."""
        if len(self._sessions) >= self._limits.sessions:
            self._rejections.add("sessions", f"a session of run {identity.name}", self._limits.sessions)
            return []
        run, batches = self._runs.get(identity.run), self._bury(identity, now)
        if run is not None and identity.attempt < run.identity.attempt:
            return batches  # left over from an attempt that its launcher has given up
        if run is not None and attempt is not None and attempt < run.attempt:
            return batches  # left over from before the run was resumed
        if run is None or self._is_new_attempt(run, identity):
            opened, followed = self._open(identity, run, now, attempt)
            batches += followed
            if opened is None:
                return batches
            run = opened
        rank = run.ranks.get(identity.rank)
        if rank is None:
            losses = Losses(run.before, identity.rank)
            rank = run.ranks[identity.rank] = Rank(run.name, identity.rank, self._admit, run.stalls, losses)
        if rank.state in ENDED:
            self._sessions = {key: known for key, known in self._sessions.items() if known.rank is not rank}
            rank.rejoin()
        rank.look(run.stalls())
        known = self._sessions[session] = Session(run, rank, identity)
        known.elsewhere = known.process not in self._watched and self._liveness.is_gone(identity) is True
        return batches + self._changed(known, now)

    def _is_new_attempt(self, run: Run, identity: Identity) -> bool:
        """A restart: the launcher says so, or the run had ended and a rank of it is here again."""
        return identity.attempt > run.identity.attempt or (run.ended and identity.rank in run.ranks)

    def _open(
        self, identity: Identity, before: Run | None, now: Moment, attempt: int | None
    ) -> tuple[Run | None, list[Batch]]:
        """A new run, or a new attempt in the place of the one *before*; None when there are too many."""
        if sum(not run.ended for run in self._runs.values() if run is not before) >= self._limits.runs:
            self._rejections.add("runs", f"run {identity.name}", self._limits.runs)
            return None, []
        goes_on = attempt is not None
        if attempt is None:
            attempt, goes_on = self._next_attempt(identity, before)
        batches = [] if before is None else [*before.reckon(*now, self._peak, last=True), *self._drop(before)]
        known = self._before(identity.run, attempt) if before is None else before.after(now.wall)
        name, evicted = self._name(identity)
        batches += evicted + self._make_room()
        run = self._runs[identity.run] = Run(identity, name, attempt, self._stalls, known)
        log.info("run %s (id %s, attempt %d) %s", name, identity.run, attempt, "goes on" if goes_on else "begins")
        if not goes_on:
            kind = "run_restarted" if attempt > 0 else "run_started"
            given_up = [] if before is None else before.given_up(now.wall)
            batches.append(Batch(run.source, records=[*given_up, run.event(kind, now.wall)]))
        return run, batches

    def _next_attempt(self, identity: Identity, before: Run | None) -> tuple[int, bool]:
        """One more than the last that ended, here or before this daemon, unless the launcher counts further.

        Beside it, whether it is one from before this daemon that goes on.
        """
        past = (before.attempt, 0.0) if before is not None else self._past(identity.run)
        if past is None:
            return identity.attempt, False
        number = max(identity.attempt, past[0] + (past[1] is not None))
        return number, number == past[0]

    def _make_room(self) -> list[Batch]:
        """Forget the run that ended first when as many have ended as may live."""
        ended = [run for run in self._runs.values() if run.ended]
        if len(ended) < self._limits.runs:
            return []
        first = min(ended, key=lambda run: run.until or 0.0)
        self._rejections.add("runs", f"the end of run {first.name}", self._limits.runs)
        return self._drop(first)

    def _bury(self, identity: Identity, now: Moment) -> list[Batch]:
        """When a rank comes whose process is gone, its run was killed and begins anew: end whatever of it is gone."""
        of_run = [known for known in self._sessions.values() if known.identity.run == identity.run]
        before = [known for known in of_run if known.identity.rank == identity.rank]
        batches = [self._settle(known, now) for known in before if known.waits_until is not None]
        if not all(known.status for known in before):
            processes = {known.process: known.identity for known in of_run if not known.status}
            gone = {process for process, one in processes.items() if self._liveness.is_gone(one)}
            if any(known.process in gone for known in before):
                batches += [self._lose(known, now) for known in of_run if not known.status and known.process in gone]
        return [*chain.from_iterable(batches)]

    def _name(self, identity: Identity) -> tuple[str, list[Batch]]:
        """The name to export a run under.

        An ended run of the same name makes room at once. Beside a live one, a run of one node gets a number behind its
        name, and one of several nodes, whose daemons could not agree on a number, replaces it.
        """
        name = identity.name
        several_nodes = identity.world > identity.local_world
        batches: list[Batch] = []
        number = 1
        while (other := next((run for run in self._runs.values() if run.name == name), None)) is not None:
            if other.ended or several_nodes:
                batches += self._drop(other)
            else:
                number += 1
                name = f"{cut(identity.name, self._limits.label_bytes - 8)}-{number}"
        return name, batches + self._missed.evict(name)

    def _settle(self, known: Session, now: Moment) -> list[Batch]:
        """The page waits no longer for a process's exit."""
        known.waits_until = None
        return self._end(known, now)

    def _lose(self, known: Session, now: Moment) -> list[Batch]:
        """A process is gone, or silent for too long, and nobody can tell how it ended."""
        known.ended_at = now.wall
        return self._end(known, now)

    def _end(self, known: Session, now: Moment) -> list[Batch]:
        """End a session, by all that is known of its end; and with its last session, a rank.

        The history is told at once, since this daemon may be killed as well. The page waits while the exit can change it.
        """
        known.status, known.cause = verdict(known.bye, known.exit)
        run, rank = known.run, known.rank
        sessions = [one for one in self._sessions.values() if one.rank is rank]
        if not all(one.status for one in sessions):
            return []
        last = decisive(sessions)
        end, before = End(last.status, last.cause, known.ended_at), rank.end
        records: list[Record] = []
        if before is None or before[:2] != end[:2]:
            rank.end = end
            records.append(run.rank_ended(known.identity.rank, end, last.exit))
        if any(one.waits_until is not None for one in sessions):
            return [Batch("training", records=[run.standing(), *records])]
        if not records and rank.state == end.state:
            return []
        rank.state = end.state
        level = logging.WARNING if end.state in {"failed", "lost"} else logging.INFO
        why = f": {end.cause}" if end.cause else ""
        log.log(level, "run %s rank %s %s%s", run.name, rank.labels[1], end.state, why)
        return self._changed(known, now, *records)

    def _changed(self, known: Session, now: Moment, *records: Record) -> list[Batch]:
        """A rank began, ended or came back: its state, the run's, and when their series are forgotten."""
        run, before = known.run, known.run.until
        run.keep(now.monotonic, self.linger)
        if run.until is not None:
            log.info("run %s (id %s, attempt %d) ended: %s", run.name, run.identity.run, run.attempt, run.state)
        ranks = [known.identity.rank] if run.until == before else run.ranks
        return [*(run.speak(rank, run.ranks[rank].standing()) for rank in ranks), run.marks(*records)]

    def _drop(self, run: Run) -> list[Batch]:
        """Forget a run, its sessions, and all its series."""
        self._runs.pop(run.identity.run, None)
        self._sessions = {key: known for key, known in self._sessions.items() if known.run is not run}
        return run.forget()

    def _admit(self, rank: Rank, key: str) -> bool:
        if len(key.encode()) > self._limits.label_bytes:
            return self._rejections.add("label_length", f"key {key[:40]}…", self._limits.label_bytes)
        if rank.keys >= self._limits.keys:
            return self._rejections.add("keys", f"key {key} of run {rank.labels[0]}", self._limits.keys)
        shown = (run for run in self._runs.values() if not run.forgotten)
        if sum(one.keys for run in shown for one in run.ranks.values()) >= self._limits.series:
            return self._rejections.add("series", f"key {key} of run {rank.labels[0]}", self._limits.series)
        return True
