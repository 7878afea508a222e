"""Open the history of runs in Python. Its reader comes with the daemon, which is imported by the first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    import os

    from trackside_daemon.questions.opened import History
    from trackside_daemon.questions.opened_run import RunHistory


@overload
def open(run: None = None, *, path: str | os.PathLike[str] | None = None) -> History: ...  # noqa: A001
@overload
def open(run: str, *, path: str | os.PathLike[str] | None = None) -> RunHistory: ...  # noqa: A001
def open(run: str | None = None, *, path: str | os.PathLike[str] | None = None) -> History | RunHistory:  # noqa: A001  named as in gzip
    """Open the history, or one run in it. This needs no daemon, and may be done while one writes.

    Args:
        run: Id of a run, the beginning of it, or a name: its newest run. None for the whole history.
        path: Directory of the history; None for ``$TRACKSIDE_STORAGE__PATH``, or the directory in which a daemon of this
            user writes by default.

    Raises:
        HistoryError: There is no history, or it cannot be read.
        UnknownRunError: No run, or several, have this id or name.
    """
    from trackside_daemon.questions.opened import History

    history = History(path)
    return history if run is None else history.run(run)
