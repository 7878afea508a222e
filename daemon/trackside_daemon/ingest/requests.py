"""Requests of other threads to the ingest thread: acknowledgements, restarts of sessions, and commands to clients."""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from trackside_daemon.ingest.client_commands import Question

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from trackside.wire import Body
    from trackside_daemon.ingest.session import Receipt
    from trackside_daemon.model.answer import Answer
    from trackside_daemon.model.metric import Batch
    from trackside_daemon.training.moment import Moment

ANSWER_SECONDS = 3.0  # How long `ask` waits by default. A client answers as soon as its sender thread gets the GIL.

CANCEL_SECONDS = 1.0  # How long clients may take to answer a question that is cancelled.


class IngestRequests:
    """Queues that any thread fills and the ingest thread empties.

    Attributes:
        receipts: Messages that are committed.
        restarts: Sessions that have to greet again; None for all.
        questions: Commands to send.
        changes: Changes of runs, which return batches to deliver.
    """

    def __init__(self) -> None:
        self.receipts: deque[Receipt] = deque()
        self.restarts: deque[bytes | None] = deque()
        self.questions: deque[Question] = deque()
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

    def command(self, kind: str, run: str, number: int, ranks: frozenset[int] | None = None) -> Question:
        """Send the clients of a run, by its id, a command that has no answer; do not wait."""
        question = Question(kind, run, ranks, number=number)
        self.questions.append(question)
        self.wake()
        return question

    def command_layers(self, run: str, steps: int, ranks: frozenset[int] | None = None) -> Question:
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
    ) -> tuple[frozenset[int], list[Answer]]:
        """Ask the clients of a run, and wait *seconds* at most. Any thread but the ingest thread may call it.

        Args:
            kind: One of those of `client_commands.ANSWERS`.
            run: The run's id.
            ranks: Only these ranks; None for all.
            body: What the question contains besides its kind.
            seconds: The longest wait.
            cancelled: Ends the wait soon after it is set, and the profile that a client records.

        Returns:
            The ranks that were asked, and their answers.
        """
        question = Question(kind, run, ranks, body)
        self.questions.append(question)
        self.wake()
        answers = question.wait(seconds, cancelled)
        if cancelled is not None and cancelled.is_set():
            self.questions.append(Question("cancel?", run, ranks, number=0))
            self.wake()
            answers = question.wait(CANCEL_SECONDS)
        return question.asked or frozenset(), answers
