"""Asks a daemon again and again, in a thread of its own: a slow answer must not hold up a key."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from trackside_daemon.terminal.frame import Told

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Question = Callable[[dict[str, Any]], list[tuple[str, str]]]


class UnansweredError(Exception):
    """A question has no answer; the message says why in one line."""


class Daemon(Protocol):
    """A daemon that can be asked; both raise `UnansweredError`."""

    def overview(self) -> dict[str, Any]:
        """What `/api/v1/overview` says."""
        ...

    def series(self, asked: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
        """What `/api/v1/series` says."""
        ...


class Answer(NamedTuple):
    """What came of asking.

    Attributes:
        said: None where nothing was.
        trouble: Why not, in one line; empty where all is well.
        time: When it was asked, in Unix seconds.
    """

    said: Told | None
    trouble: str
    time: float


def ask(daemon: Daemon, question: Question) -> Told:
    """An overview, and the series of a run.

    Raises:
        UnansweredError: There is none.
    """
    overview = _checked(daemon.overview())
    asked = question(overview)
    series = [one for one in daemon.series(asked) if isinstance(one, dict)] if asked else []
    return Told(overview, series, asked[0][1] if asked else "")


def _checked(overview: dict[str, Any]) -> dict[str, Any]:
    """An overview of the form that is drawn."""
    for name in ("runs", "gpus", "alerts"):
        rows = overview.get(name)
        if not isinstance(rows, list) or not all(isinstance(one, dict) for one in rows):
            raise UnansweredError(f"what the daemon says has no {name}: it is of another version")
    if not isinstance(overview.get("host", {}), dict):
        raise UnansweredError("what the daemon says has no host: it is of another version")
    return overview


class Asking:
    """The thread.

    Args:
        daemon: Whom it asks.
        question: What to ask of `/api/v1/series` after an overview, the ``run`` first; empty for nothing.
        tell: Told each answer, in this thread.
        interval: Seconds from one question to the next.
    """

    def __init__(
        self,
        daemon: Daemon,
        question: Question,
        tell: Callable[[Answer], object],
        interval: float,
    ) -> None:
        self._daemon = daemon
        self._question = question
        self._tell = tell
        self._interval = interval
        self._wanted = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="asking", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def now(self) -> None:
        """Ask at once: another run or window is wanted."""
        self._wanted.set()

    def end(self) -> None:
        """Tell nothing more; a question that is under way is not waited for."""
        self._ended = True
        self._wanted.set()

    def _run(self) -> None:
        while not self._ended:
            self._wanted.clear()
            asked = time.time()
            try:
                answer = Answer(ask(self._daemon, self._question), "", asked)
            except UnansweredError as error:
                answer = Answer(None, str(error), asked)
            if not self._ended:
                self._tell(answer)
            self._wanted.wait(self._interval)
