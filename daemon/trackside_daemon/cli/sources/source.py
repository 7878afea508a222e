"""The interface to a history: one method per question."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from trackside_daemon.history.console.lines import Lines
    from trackside_daemon.history.files.export import Format
    from trackside_daemon.history.files.importing import ImportResult
    from trackside_daemon.history.files.items import Item
    from trackside_daemon.history.read.reader import RunFilter

ANSWER_SECONDS = 60.0  # time limit of a question
CHUNK_BYTES = 64 * 1024


class Export(NamedTuple):
    """A run in transfer.

    Attributes:
        samples: Their number; None if it is unknown.
        chunks: The bytes.
    """

    samples: int | None
    chunks: Iterator[bytes]


class Source(Protocol):
    """A history that commands can query and change.

    Attributes:
        live: Whether a daemon answers, so that live runs are up to date.
    """

    live: bool

    def runs(self, wanted: RunFilter) -> list[dict[str, Any]]:
        """Return the runs that match, the newest first."""
        ...

    def run(self, text: str, limit: int | None = None) -> dict[str, Any]:
        """Return the run that *text* identifies, without its samples, and with at most *limit* ``metrics``; None for the usual number."""
        ...

    def events(self, uid: str) -> list[dict[str, Any]]:
        """Return the events of a run, oldest first."""
        ...

    def alerts(self, uid: str) -> list[dict[str, Any]]:
        """Return the alerts of a run, oldest first; those of all runs if *uid* is empty."""
        ...

    def diagnosis(self, text: str, baseline: Sequence[str] = (), keys: Sequence[str] = ()) -> dict[str, Any]:
        """Return the diagnosis of the run that *text* identifies; see `diagnosis.diagnose` for the other arguments."""
        ...

    def comparison(self, runs: Sequence[str], baseline: Sequence[str], keys: Collection[str] = ()) -> dict[str, Any]:
        """Return how runs differ from a baseline, runs or tags; if it is empty, from the first run's own."""
        ...

    def answer_agent(self, message: bytes, *, actions: bool) -> dict[str, Any]:
        """Return the answer to a message of the Model Context Protocol; empty if it needs none."""
        ...

    def checkpoints(self, text: str, metric: str = "") -> dict[str, Any]:
        """Return the checkpoints of the run that *text* identifies, with the values of a metric; see `overview`."""
        ...

    def layers(self, text: str) -> dict[str, Any]:
        """Return the newest values of the layers of the run that *text* identifies; see `history.read.layers.newest`."""
        ...

    def captures(self, text: str) -> list[dict[str, Any]]:
        """Return the captures of the run that *text* identifies, or of all runs if it is empty, oldest first."""
        ...

    def capture_file(self, id_: str, name: str) -> Iterator[bytes]:
        """Yield the content of a file of a capture."""
        ...

    def console(self, text: str, count: int) -> Lines:
        """Return the last *count* lines that the command of the run that *text* identifies printed, at most 10,000."""
        ...

    def report(self, text: str, size: int) -> dict[str, Any]:
        """Return what a report has about the run that *text* identifies, with at most *size* bytes of charts."""
        ...

    def alert(self, number: int) -> dict[str, Any]:
        """Return an alert by its id."""
        ...

    def dismiss(self, number: int, *, dismissed: bool, comment: str) -> dict[str, Any]:
        """Mark an alert as a false alarm, or take that back; return it."""
        ...

    def export(self, uid: str, form: Format, *, resources: bool = False) -> Export:
        """Return a run with its samples, and with the *resources* of its machine in its time."""
        ...

    def pin(self, uid: str, *, pinned: bool) -> None:
        """Pin or unpin a run; retention never deletes a pinned one."""
        ...

    def delete(self, uid: str) -> None:
        """Delete a run."""
        ...

    def import_file(self, file: Path, name: str, uid: str) -> ImportResult:
        """Import a file as a run; *name* and *uid* may be empty."""
        ...

    def import_run(self, items: Iterator[Item], file: str, name: str, uid: str) -> ImportResult:
        """Import the items of a run; *file* is where they come from, for errors."""
        ...
