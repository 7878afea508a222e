"""The base of all kinds of captures, and the interface of those who record ranks."""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, Protocol

from trackside.os_errors import os_error_text
from trackside.wire import Body
from trackside_daemon.model.capture import Capture, RankAnswer

Summarize = Callable[[Mapping[int, Path]], dict[str, Any]]


MIN_FREE_BYTES = 1 << 20


class AskRanks(Protocol):
    """Asks ranks of a run, by its id, a kind of question; returns the asked ranks and their answers, within 3 s by default.

    Soon after *cancelled* is set, it has them end a profile, and returns.
    """

    def __call__(  # noqa: D102
        self,
        kind: str,
        run: str,
        ranks: frozenset[int] | None = None,
        body: Body = None,
        seconds: float = ...,
        *,
        cancelled: threading.Event | None = None,
    ) -> tuple[frozenset[int], Sequence[RankAnswer]]: ...


class RankRecorder:
    """Records ranks of runs; called by the threads of several captures at once, never for one rank at the same time."""

    def refuse(self, capture: Capture, ranks: Sequence[int]) -> dict[int, str]:  # noqa: ARG002
        """Return the ranks that it cannot record, each with the reason in one line: none. This does not wait."""
        return {}

    def record(
        self, capture: Capture, ranks: Sequence[int], directory: Path, cancelled: threading.Event
    ) -> dict[int, Path | str]:
        """Record ranks, and return when their files are complete, at its own deadline, or soon after *cancelled* is set.

        Args:
            capture: What to record: run, kind and options.
            ranks: Ranks that `refuse` did not name.
            directory: An empty directory of this recorder and this capture alone.
            cancelled: Set when the run is deleted or the daemon stops.

        Returns:
            For each rank, its file in the directory, or the reason for its absence in one line. It never raises for a rank.
        """
        raise NotImplementedError


class CaptureKind(RankRecorder):
    """A kind of captures, and the `RankRecorder` of most kinds."""

    name: ClassVar[str]  # its name, one of `trackside_daemon.model.capture.KINDS`
    contents: ClassVar[str] = ""  # the kind of its files; empty if it is the same name
    least_bytes: ClassVar[int] = MIN_FREE_BYTES  # the free room of the disk with which a capture begins
    # The key of its summary with what has changed, a ``text`` each; empty if nothing is compared.
    changes: ClassVar[str] = ""
    is_compared: ClassVar[bool] = False  # the changes are those since an earlier capture, from `difference`

    @property
    def recorders(self) -> Sequence[RankRecorder]:
        """The recorders of ranks, in the order in which they are tried."""
        return (self,)

    def prepared_summary(self, _capture: Capture) -> AbstractContextManager[Summarize]:
        """Prepare for the summary of a capture while ranks are recorded: yield what makes it, as `summarize`, and blocks."""
        return nullcontext(self.summarize)

    @staticmethod
    def summarize(files: Mapping[int, Path]) -> dict[str, Any]:
        """Return the summary of files by rank as JSON: ``ranks``, ``failed`` with reasons where there are any, and more.

        A kind that has its own `prepared_summary` needs none.
        """
        raise NotImplementedError

    @staticmethod
    def text(summary: Mapping[str, Any]) -> list[str]:
        """Return a summary for people, in at most 40 lines."""
        raise NotImplementedError

    @staticmethod
    def difference(reference: Mapping[str, Any], summary: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return what has changed between two summaries of a run, the largest change first."""
        raise NotImplementedError


def written(path: Path, content: bytes) -> Path | str:
    """Write a file and return its path, or why it cannot be written in one line."""
    try:
        path.write_bytes(content)
    except OSError as error:
        return failure(path, error)
    return path


def failure(path: Path, error: OSError) -> str:
    """Return why a file cannot be written or read, in one line."""
    return f"{path}: {os_error_text(error)}"
