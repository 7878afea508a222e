"""Requests of other threads to the ingest thread, and what the daemon tells its clients of itself.

These are acknowledgements, restarts of sessions, questions such as for stacks, and for how long clients are to collect rows.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from trackside.wire import GATHER_SECONDS, LONGEST_GATHER, Body, Envelope, encode
from trackside_daemon.ingest.client_session import ClientSession, Receipt
from trackside_daemon.ingest.messages import ANSWERS
from trackside_daemon.model.capture import RankAnswer
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.session import SessionRef
from trackside_daemon.training.moment import Moment

ANSWER_SECONDS = 3.0  # how long `ask` waits by default: a client answers as soon as its sender thread gets the GIL
CANCEL_SECONDS = 1.0  # how long clients may take to answer a question that is cancelled
CHECK_SECONDS = 0.1  # between two checks whether a question is cancelled
MAX_UNANSWERED = 1024  # the most questions that wait for answers

BATCHES_A_SECOND = 16.0  # of all clients together, as far as they may collect so long
BUSY_SHARE = 0.5  # share of a core from which clients collect for longer than their number requires
SLOWER, FASTER = 1.25, 0.9  # factors of the time, each second, while the daemon is busy and while it is not
MAX_FACTOR = 8.0  # limit of the product of these factors


class RankQuestion:
    """A question to some ranks at once, or a command.

    Attributes:
        kind: One of those of `ANSWERS`; or ``layers?`` or ``cancel?``, commands without an answer.
        run: The run's id.
        ranks: Only these ranks are asked; None for all.
        body: What the question contains besides its kind.
        number: The number of a command; None for a question.
        asked: The ranks that were asked; None before.
    """

    def __init__(
        self, kind: str, run: str, ranks: frozenset[int] | None = None, body: Body = None, *, number: int | None = None
    ) -> None:
        self.kind = kind
        self.run = run
        self.ranks = ranks
        self.body = body
        self.number = number
        self.asked: frozenset[int] | None = None
        self._began = time.monotonic()
        self._answers: dict[int, RankAnswer] = {}
        self._gone: set[int] = set()
        self._complete = threading.Event()

    def begin(self, ranks: frozenset[int]) -> None:
        """Note the ranks that are asked."""
        self.asked = ranks
        self._check()

    def answer(self, rank: int, body: Any) -> None:
        """Add the answer of a rank."""
        self._answers[rank] = RankAnswer(rank, time.monotonic() - self._began, body)
        self._check()

    def give_up(self, rank: int) -> None:
        """Expect no answer of a rank any more: it has ended."""
        self._gone.add(rank)
        self._check()

    def wait(self, seconds: float, cancelled: threading.Event | None = None) -> list[RankAnswer]:
        """Wait for all answers, or soon after *cancelled* is set no more; return those that arrived by then, by rank."""
        until = time.monotonic() + seconds
        piece = seconds if cancelled is None else CHECK_SECONDS
        while not self._complete.wait(max(0.0, min(piece, until - time.monotonic()))):
            if time.monotonic() >= until or (cancelled is not None and cancelled.is_set()):
                break
        return [self._answers[rank] for rank in sorted(self._answers)]

    def _check(self) -> None:
        if self.asked is not None and (self.number is not None or self.asked <= self._answers.keys() | self._gone):
            self._complete.set()


class IngestRequests:
    """Queues that any thread fills and the ingest thread empties.

    Attributes:
        receipts: Messages that are committed.
        restarts: Sessions that have to greet again; None for all.
        questions: Questions to send to ranks.
        changes: Changes of runs, which return batches to deliver.
    """

    def __init__(self) -> None:
        self.receipts: deque[Receipt] = deque()
        self.restarts: deque[bytes | None] = deque()
        self.questions: deque[RankQuestion] = deque()
        self.changes: deque[Callable[[Moment], Sequence[Batch]]] = deque()
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)

    def fileno(self) -> int:
        """Return a descriptor that is readable while there are requests; `drain` resets it."""
        return self._reader

    def drain(self) -> None:
        """Consume the wake-ups."""
        os.read(self._reader, 4096)

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self._reader)
        os.close(self._writer)

    def wake(self) -> None:
        """Wake the ingest thread."""
        with suppress(BlockingIOError):  # the pipe is full of wake-ups already
            os.write(self._writer, b"\0")

    def acknowledge(self, receipt: Receipt) -> None:
        """Answer a committed message. The history's thread calls it."""
        self.receipts.append(receipt)
        self.wake()

    def restart(self, session: bytes | None) -> None:
        """Have a session, or all, greet and resend what was not acknowledged. The history's thread calls it."""
        self.restarts.append(session)
        self.wake()

    def change(self, change: Callable[[Moment], Sequence[Batch]]) -> None:
        """Have the ingest thread, which alone changes runs, call a function and deliver the batches that it returns."""
        self.changes.append(change)
        self.wake()

    def command(self, kind: str, run: str, number: int, ranks: frozenset[int] | None = None) -> RankQuestion:
        """Send the clients of a run, by its id, a command that has no answer; do not wait."""
        question = RankQuestion(kind, run, ranks, number=number)
        self.questions.append(question)
        self.wake()
        return question

    def command_layers(self, run: str, steps: int, ranks: frozenset[int] | None = None) -> RankQuestion:
        """Have ranks of a run, by its id, push the norms of all layers for *steps* steps; do not wait.

        Distributions are measured more often meanwhile, if they are measured.
        """
        return self.command("layers?", run, steps, ranks)

    def ask_layers(self, run: str, steps: int) -> frozenset[int]:
        """Send the command of `command_layers`, and return the ranks that got it."""
        question = self.command_layers(run, steps)
        question.wait(ANSWER_SECONDS)
        return question.asked or frozenset()

    def ask(
        self,
        kind: str,
        run: str,
        ranks: frozenset[int] | None = None,
        body: Body = None,
        seconds: float = ANSWER_SECONDS,
        *,
        cancelled: threading.Event | None = None,
    ) -> tuple[frozenset[int], list[RankAnswer]]:
        """Ask the clients of a run, and wait *seconds* at most. Any thread but the ingest thread may call it.

        Args:
            kind: One of those of `ANSWERS`.
            run: The run's id.
            ranks: Only these ranks; None for all.
            body: What the question contains besides its kind.
            seconds: The longest wait.
            cancelled: Ends the wait soon after it is set, and the profile that a client records.

        Returns:
            The ranks that were asked, and their answers.
        """
        question = RankQuestion(kind, run, ranks, body)
        self.questions.append(question)
        self.wake()
        answers = question.wait(seconds, cancelled)
        if cancelled is not None and cancelled.is_set():
            self.questions.append(RankQuestion("cancel?", run, ranks, number=0))
            self.wake()
            answers = question.wait(CANCEL_SECONDS)
        return question.asked or frozenset(), answers


class Questions:
    """The questions that wait for answers. Used by the ingest thread only."""

    def __init__(self) -> None:
        self._number = 0
        # With the session that is asked and its rank: another one must not answer for it.
        self._waiting: dict[int, tuple[RankQuestion, bytes, int]] = {}

    def messages(self, question: RankQuestion, sessions: Iterable[ClientSession], now: Moment) -> list[list[bytes]]:
        """Return the messages that ask the ranks of a run; of several live *sessions* of a rank the last active one."""
        last: dict[int, ClientSession] = {}
        for session in sorted(sessions, key=lambda session: session.received_at):
            is_asked = question.ranks is None or session.ref.rank in question.ranks
            if is_asked and session.ref.run == question.run and session.speaks(now):
                last[session.ref.rank] = session
        question.begin(frozenset(last))
        return [
            [
                session.peer,
                *encode(Envelope(question.kind, session.ref.id, self.number(question, session.ref)), question.body),
            ]
            for session in last.values()
        ]

    def number(self, question: RankQuestion, session: SessionRef) -> int:
        """Return the number of a question's message to a session; a command has its own."""
        if question.number is not None:
            return question.number
        self._number += 1
        self._waiting[self._number] = question, session.id, session.rank
        if len(self._waiting) > MAX_UNANSWERED:  # clients that have ended never answer
            del self._waiting[next(iter(self._waiting))]
        return self._number

    def give_up(self, is_over: Callable[[bytes], bool]) -> None:
        """Have no question wait for sessions, by their ids, that are over."""
        for number, (question, session, rank) in list(self._waiting.items()):
            if is_over(session):
                del self._waiting[number]
                question.give_up(rank)

    def answered(self, kind: str, number: int, session: bytes, body: Any) -> None:
        """Pass an answer of a session, by its id, to its question, if that still waits for it."""
        question, asked, rank = self._waiting.get(number, (None, b"", 0))
        if question is not None and asked == session and question.kind == ANSWERS[kind]:
            del self._waiting[number]
            question.answer(rank, body)


class Pacing:
    """For how long all clients are to collect rows in a batch, so that the cost of batches does not grow with the ranks.

    Attributes:
        milliseconds: That time, between `GATHER_SECONDS` and `LONGEST_GATHER`.
    """

    def __init__(self) -> None:
        self.milliseconds = round(1000 * GATHER_SECONDS)
        self._factor = 1.0

    def update(self, sessions: int, load: float) -> None:
        """Choose the time once a second, by the live sessions and the share of a core that the daemon uses."""
        change = SLOWER if load > BUSY_SHARE else FASTER
        self._factor = min(MAX_FACTOR, max(1.0, self._factor * change))
        seconds = min(LONGEST_GATHER, max(GATHER_SECONDS, self._factor * sessions / BATCHES_A_SECOND))
        self.milliseconds = 100 * round(10 * seconds)  # in steps, so that small changes send no messages

    def messages(self, sessions: Iterable[ClientSession]) -> list[list[bytes]]:
        """Return a message for each session whose client collects for another time."""
        changed = [session for session in sessions if session.gather_milliseconds != self.milliseconds]
        for session in changed:
            session.gather_milliseconds = self.milliseconds
        return [[session.peer, *encode(Envelope("pace", session.ref.id, self.milliseconds))] for session in changed]
