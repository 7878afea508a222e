"""The interface of those who record ranks: the profiling protocol of PyTorch, and trackside's own client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence
    from pathlib import Path

    from trackside.wire import Body
    from trackside_daemon.model.answer import Answer
    from trackside_daemon.model.capture import Capture


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
    ) -> tuple[frozenset[int], Sequence[Answer]]: ...


class Recorder(Protocol):
    """Records ranks of runs; called by the threads of several captures at once, never for one rank at the same time."""

    def refuse(self, capture: Capture, ranks: Sequence[int]) -> dict[int, str]:
        """Return the ranks that it cannot record, each with the reason in one line. This does not wait."""
        ...

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
        ...
