"""The interface to a history: questions, changes, and their errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from trackside_daemon.history.files.importing import ImportResult
    from trackside_daemon.history.files.items import Item
    from trackside_daemon.questions.question import Question
    from trackside_daemon.questions.series import Export, Exported

ANSWER_SECONDS = 60.0  # time limit of a question
CHUNK_BYTES = 64 * 1024


class SourceError(Exception):
    """A query failed; the message is one line with the reason.

    Attributes:
        status: The command's exit status.
    """

    def __init__(self, message: str, status: int = 2) -> None:
        super().__init__(message)
        self.status = status


class NotFoundError(SourceError):
    """The daemon does not have what was asked for."""


class TokenError(SourceError):
    """The daemon requires a token, or a different one."""


class LockedError(SourceError):
    """The credentials file is invalid, or the daemon rejects its content, or its certificate is not trusted."""


class Source(Protocol):
    """A history that commands can query and change."""

    live: bool  # whether a daemon answers, so that live runs are up to date

    def ask(self, question: Question) -> dict[str, Any]:
        """Return the answer to a question, the same from a daemon as from the file but for what only a daemon knows.

        Raises:
            NotFoundError: The history does not have what was asked for.
            SourceError: A parameter is invalid, or there is no answer.
        """
        ...

    def answer_agent(self, message: bytes, *, actions: bool) -> dict[str, Any]:
        """Return the answer to a message of the Model Context Protocol; empty if it needs none."""
        ...

    def capture_file(self, id_: str, name: str) -> Iterator[bytes]:
        """Yield the content of a file of a capture."""
        ...

    def dismiss(self, number: int, *, dismissed: bool, comment: str) -> dict[str, Any]:
        """Mark an alert as a false alarm, or take that back; return it."""
        ...

    def export(self, wanted: Export) -> Exported:
        """Return a run as a file."""
        ...

    def changes(self) -> AbstractContextManager[None]:
        """Return a context for many changes: a history without a daemon is opened once for all of them."""
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


def newest_unless(source: Source, run: str) -> str:
    """Return the run that the user named, else the id of the newest one.

    Raises:
        SourceError: There is no run yet, or there is no answer.
    """
    from trackside_daemon.questions import table as questions

    if run:
        return run
    listed = source.ask(questions.Runs(limit=1))["runs"]
    if not listed:
        raise NotFoundError("the history has no runs yet")
    return str(listed[0]["id"])


def selected(source: Source, named: Sequence[str] | None, query: str) -> list[str]:
    """Return the runs that the user named, else the ids of those that a query selects, newest first.

    Raises:
        SourceError: There are none, both or neither were given, or there is no answer.
    """
    from trackside_daemon.questions import table as questions

    if bool(named) == bool(query):
        raise SourceError("name runs, or select them with --query" + ("; not both" if named else ""))
    if named:
        return list(named)
    answer = source.ask(questions.Runs(query=query))
    if not answer["runs"]:
        raise NotFoundError(f"--query: {answer['hint'] or 'the history has no runs yet'}")
    return [str(run["id"]) for run in answer["runs"]]
