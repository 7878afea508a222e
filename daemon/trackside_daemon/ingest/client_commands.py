"""Questions of the daemon to its clients, such as for their stacks, and their answers."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from trackside.wire import Envelope, encode
from trackside_daemon.model.answer import Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trackside.wire import Body
    from trackside_daemon.ingest.session import IngestSession
    from trackside_daemon.model.session import SessionRef
    from trackside_daemon.training.moment import Moment

ANSWERS = {
    "stacks": "stacks?",
    "flight": "flight?",
    "steps": "steps?",
    "profile": "profile?",
    "memory": "memory?",
    "pong": "ping",
}  # the kinds of answers, each with the kind of its question
SPEAKING_SECONDS = 10.0  # a session that has been silent for longer gets no commands
CHECK_SECONDS = 0.1  # between two checks whether a question is cancelled
UNANSWERED = 1024  # the most questions that wait for answers


class Question:
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
        self,
        kind: str,
        run: str,
        ranks: frozenset[int] | None = None,
        body: Body = None,
        *,
        number: int | None = None,
    ) -> None:
        self.kind = kind
        self.run = run
        self.ranks = ranks
        self.body = body
        self.number = number
        self.asked: frozenset[int] | None = None
        self._began = time.monotonic()
        self._answers: dict[int, Answer] = {}
        self._gone: set[int] = set()
        self._complete = threading.Event()

    def begin(self, ranks: frozenset[int]) -> None:
        """Note the ranks that are asked."""
        self.asked = ranks
        self._check()

    def answer(self, rank: int, body: Any) -> None:
        """Add the answer of a rank."""
        self._answers[rank] = Answer(rank, time.monotonic() - self._began, body)
        self._check()

    def give_up(self, rank: int) -> None:
        """Expect no answer of a rank any more: it has ended."""
        self._gone.add(rank)
        self._check()

    def wait(self, seconds: float, cancelled: threading.Event | None = None) -> list[Answer]:
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


class Questions:
    """The questions that wait for answers. Used by the ingest thread only."""

    def __init__(self) -> None:
        self._number = 0
        # With the session that is asked and its rank: another one must not answer for it.
        self._waiting: dict[int, tuple[Question, bytes, int]] = {}

    def messages(self, question: Question, sessions: Iterable[IngestSession], now: Moment) -> list[list[bytes]]:
        """Return the messages that ask the ranks of a run; of several live *sessions* of a rank the last active one."""
        last: dict[int, IngestSession] = {}
        for session in sorted(sessions, key=lambda session: session.received_at):
            if (
                session.greeted
                and session.ref.run == question.run
                and (question.ranks is None or session.ref.rank in question.ranks)
                and not session.ref.late
                and now.monotonic - session.received_at < SPEAKING_SECONDS
            ):
                last[session.ref.rank] = session
        question.begin(frozenset(last))
        return [
            [
                session.peer,
                *encode(Envelope(question.kind, session.ref.id, self.number(question, session.ref)), question.body),
            ]
            for session in last.values()
        ]

    def number(self, question: Question, session: SessionRef) -> int:
        """Return the number of a question's message to a session; a command has its own."""
        if question.number is not None:
            return question.number
        self._number += 1
        self._waiting[self._number] = question, session.id, session.rank
        if len(self._waiting) > UNANSWERED:  # clients that have ended never answer
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
