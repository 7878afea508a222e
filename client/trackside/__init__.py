"""Report what a training does to the trackside daemon.

    import trackside

    for step, batch in enumerate(loader):
        loss = train(batch)
        trackside.push(step=step, loss=loss)

The first push opens a run; `init` opens one with a name, a configuration and more. A push costs about as much as an
append to a list, never waits for the network, the disk or the daemon, and never raises. `trackside.open` reads the history.
"""

import sys as _sys
from atexit import register as _register
from importlib import import_module as _import_module
from typing import TYPE_CHECKING

__all__ = [
    "Checkpoints",
    "LogFilter",
    "Run",
    "alert",
    "correlation_id",
    "data",
    "event",
    "finish",
    "init",
    "log",
    "log_histogram",
    "log_image",
    "log_table",
    "log_text",
    "observe",
    "phase",
    "push",
    "resume_path",
    "summary",
    "watch",
]

_HOMES = {
    "Checkpoints": "trackside.checkpoints.checkpoints",
    "LogFilter": "trackside.log_filter",
    "Run": "trackside.run",
    "open": "trackside.history",
    "resume_path": "trackside.environment.restart",
    "History": "trackside_daemon.questions.opened",
    "RunHistory": "trackside_daemon.questions.opened_run",
    **dict.fromkeys(("Media", "Series"), "trackside_daemon.questions.opened_series"),
    **dict.fromkeys(("UnknownKeyError", "UnknownRunError"), "trackside_daemon.history.read.reader"),
    "HistoryError": "trackside_daemon.history.directory",
}
"""Modules of what is not in `trackside.default_run`."""

# Public too, but `from trackside import *` must not replace the builtin, nor import the daemon in a training.
_WITHOUT_STAR = ["open", "__version__", *(name for name, home in _HOMES.items() if home.startswith("trackside_daemon"))]

_IN_PARTS = not {"trackside_daemon", "trackside_imports"}.isdisjoint(_sys.modules)
"""The daemon, a command or a process that `--auto` watches has imported this, and needs only parts of the package."""

# A training imports at once what its pushes need: later there may be no file descriptor for it, and a push must not raise.
if TYPE_CHECKING or not _IN_PARTS:
    from trackside.checkpoints.checkpoints import Checkpoints
    from trackside.default_run import (
        alert,
        correlation_id,
        data,
        event,
        finish,
        init,
        log,
        log_histogram,
        log_image,
        log_table,
        log_text,
        observe,
        phase,
        push,
        summary,
        watch,
    )
    from trackside.environment.restart import resume_path
    from trackside.history import open as open  # noqa: A004  named as in gzip; exported, though not by a star
    from trackside.run import Run

    for _module in ("logging", "trackside.log_filter"), ("torch", "trackside.pytorch.watcher"):
        if _module[0] in _sys.modules:  # else the program pays 6 ms each only if it uses them
            _import_module(_module[1])

if TYPE_CHECKING:
    from trackside.log_filter import LogFilter
    from trackside_daemon.history.directory import HistoryError as HistoryError
    from trackside_daemon.history.read.reader import UnknownKeyError as UnknownKeyError
    from trackside_daemon.history.read.reader import UnknownRunError as UnknownRunError
    from trackside_daemon.questions.opened import History as History
    from trackside_daemon.questions.opened_run import RunHistory as RunHistory
    from trackside_daemon.questions.opened_series import Media as Media
    from trackside_daemon.questions.opened_series import Series as Series

    __version__: str
else:

    def __getattr__(name: str) -> object:
        """Return the version, or import the client at its first use."""
        if name == "__version__":
            return _import_module("importlib.metadata").version("trackside")
        if name not in __all__ + _WITHOUT_STAR:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = getattr(_import_module(_HOMES.get(name, "trackside.default_run")), name)
        return globals()[name]


def __dir__() -> list[str]:
    return sorted(__all__ + _WITHOUT_STAR)


@_register  # now, so that what exit handlers push is sent too: handlers run in reverse order
def _exit() -> None:
    if (client := _sys.modules.get("trackside.default_run")) is not None:
        client.end_all()
