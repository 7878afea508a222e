"""What the daemon asks of clients, and what they answer: their stacks, or just that they are there."""

from __future__ import annotations

import threading
import time
from typing import Any, NamedTuple

ANSWERS = {"stacks": "stacks?", "pong": "ping"}
"""What answers a question, and the question."""

UNANSWERED = 1024
"""So many questions may wait for their answers."""


class Answer(NamedTuple):
    """What one rank answered.

    Attributes:
        seconds: How long that took, from the asking.
        body: As the wire has it; None for a kind without one.
    """

    rank: int
    seconds: float
    body: Any


class Question:
    """Asked of some ranks at once.

    Attributes:
        kind: ``stacks?`` or ``ping``; or ``layers?``, which is a command: nobody answers.
        number: What a command bears; None for a question.
        run: The run's id.
        ranks: Only these are asked; None for all.
        asked: The ranks that could be asked; None before it was.
    """

    def __init__(self, kind: str, run: str, ranks: frozenset[int] | None = None, number: int | None = None) -> None:
        self.kind = kind
        self.number = number
        self.run = run
        self.ranks = ranks
        self.asked: frozenset[int] | None = None
        self._began = time.monotonic()
        self._answers: dict[int, Answer] = {}
        self._complete = threading.Event()

    def begin(self, ranks: frozenset[int]) -> None:
        """These are asked."""
        self.asked = ranks
        self._look()

    def answer(self, rank: int, body: Any) -> None:
        """One of them has answered."""
        self._answers[rank] = Answer(rank, time.monotonic() - self._began, body)
        self._look()

    def wait(self, seconds: float) -> list[Answer]:
        """What was answered by then, by rank."""
        self._complete.wait(seconds)
        return [self._answers[rank] for rank in sorted(self._answers)]

    def _look(self) -> None:
        if self.asked is not None and (self.number is not None or self.asked <= self._answers.keys()):
            self._complete.set()


class Questions:
    """The questions that wait for answers. Only the ingest thread's."""

    def __init__(self) -> None:
        self._number = 0
        self._waiting: dict[int, Question] = {}

    def number(self, question: Question) -> int:
        """What the answer to a question will bear; a command bears its own."""
        if question.number is not None:
            return question.number
        self._number += 1
        self._waiting[self._number] = question
        if len(self._waiting) > UNANSWERED:
            del self._waiting[next(iter(self._waiting))]
        return self._number

    def answered(self, kind: str, number: int, rank: int, body: Any) -> None:
        """An answer came; one that nobody waits for any more is nothing."""
        question = self._waiting.get(number)
        if question is not None and question.kind == ANSWERS[kind]:
            del self._waiting[number]
            question.answer(rank, body)
