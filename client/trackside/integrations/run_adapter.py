"""The run that an integration pushes to, and the checkpoints that it sees. Nothing here needs a framework."""

from __future__ import annotations

import os
import sys
from functools import wraps
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from trackside.default_run import init, opened
from trackside.environment.exit_status import outcome
from trackside.log import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from trackside.run import Run

FILES, LOOK_SECONDS = 10_000, 0.5
"""Of so many files of a checkpoint the sizes are summed, in so much time; one that has more is told without its size."""

RESTS = "evaluation"
"""The phase after a training, until the process ends: one in which no step is missed."""

F = TypeVar("F", bound="Callable[..., Any]")
T = TypeVar("T")

_failed: set[str] = set()
_resting: list[RunAdapter] = []


class RunAdapter:
    """The run that the training code has opened itself, if it has, else one that is opened and ended here.

    Args:
        name: As `trackside.init` has it; so are *arguments*.
    """

    def __init__(self, name: str | None, arguments: Mapping[str, Any]) -> None:
        self.name = name
        self._arguments = dict(arguments)
        self._config: dict[str, Any] = dict(self._arguments.pop("config", None) or {})
        self._run: Run | None = None
        self._own = self._over = self._was_open = False

    @property
    def run(self) -> Run | None:
        """It; None before it was opened."""
        return self._run

    def begin(self) -> Run:
        """`open` at the beginning of a training: also when the user has ended the run of the one before it."""
        if self._own and self._was_open and self._run is not None and not self._run.is_open:
            self._over = True
        return self.open()

    def open(self) -> Run:
        """The run, which is opened first, or resumed after it was ended here. One of another that rests is ended."""
        run = self._run
        if run is not None and run.is_open and not _resting:  # as at each step
            return run
        for resting in _resting[:]:
            if resting is self:
                self._wake()
            else:
                resting.end()
        gone = run is not None and not self._own and not run.is_open and opened() is not None  # the user has a new one
        if run is None or self._over or gone:
            found = opened()
            run = found or self._init(run if self._own else None)
            self._run, self._own, self._over, self._was_open = run, found is None, False, run.is_open
        return run

    def describe(self, config: Mapping[str, Any] | None = None, total_steps: int | None = None) -> None:
        """Say more of a run of its own; what the user has given stands. A run that is the user's is left as it is."""
        self._config = {**(config or {}), **self._config}
        total_steps = None if "total_steps" in self._arguments else total_steps
        if self._own and self._run is not None:
            self._run._describe(self._config or None, total_steps)  # noqa: SLF001

    def end(self, error: BaseException | None = None, status: str = "") -> None:
        """End a run of its own, with what follows from an exception, unless a *status* is known."""
        if not self._own or self._run is None:
            return
        self._wake()
        self._over = True
        if type(error).__name__ == "SIGTERMException":  # Lightning's; it derives from SystemExit
            found = ("stopped", "SIGTERM")
        else:
            found = outcome(None if error is None else type(error), error)
        self._run._end(*((status, "") if status else found))  # noqa: SLF001

    def rest(self) -> None:
        """The training is over; what is evaluated and saved after it belongs to the run, which ends with the process.

        That of a notebook may be days later: there it ends now.
        """
        if hasattr(sys, "ps1") or "ipykernel" in sys.modules:
            self.end()
        elif self._own and self._run is not None and self not in _resting:
            _resting.append(self)
            self._run.phase(RESTS).__enter__()

    def _wake(self) -> None:
        if self in _resting and self._run is not None:
            _resting.remove(self)
            self._run.phase(RESTS).__exit__(None, None, None)

    def __getstate__(self) -> dict[str, Any]:
        """Without the run, which is this process's alone: what starts processes may pickle who holds this."""
        return {**vars(self), "_run": None, "_own": False, "_over": False, "_was_open": False}

    def _init(self, before: Run | None) -> Run:
        again = {} if before is None else {"id": before.id}
        return init(self.name, **{"config": self._config or None, **again, **self._arguments})


def told(what: str, tell: Callable[..., T], *given: Any) -> T | None:
    """Call what cannot cost the training anything: should it fail, that is said once of *what*, and None is returned."""
    try:
        return tell(*given)
    except Exception as error:  # noqa: BLE001  a framework's objects may hold anything, and training must go on
        failed(what, error)
        return None


def harmless(hook: F) -> F:
    """The same method, as `told`."""

    @wraps(hook)
    def called(self: object, *given: Any, **named: Any) -> Any:
        try:
            return hook(self, *given, **named)
        except Exception as error:  # noqa: BLE001  the same
            failed(f"{type(self).__name__}.{hook.__name__}", error)
            return None

    return called  # type: ignore[return-value]


def failed(what: str, error: Exception) -> None:
    """Say once of *what* that it has."""
    if what not in _failed:
        _failed.add(what)
        warn(f"{what}: {type(error).__name__}: {error}; training goes on without what it tells")


def saved(run: Run, save: Callable[[], T], where: Callable[[T], object], *, tells: bool = True) -> T:
    """Write a checkpoint, as a phase and an event; what *save* returns.

    Args:
        run: Is told.
        save: Writes it.
        where: From what *save* returned the file or folder; called, and the size looked up, only if it *tells*.
        tells: One rank alone does.
    """
    since = monotonic()
    with run.phase("checkpoint"):
        made = save()
        if tells:
            seconds = monotonic() - since
            told("a checkpoint", lambda: tell(run, where(made), seconds))
    return made


def tell(run: Run, path: object, seconds: float | None = None) -> None:
    """Tell of a checkpoint that was written to a file or a folder."""
    place = os.fspath(path) if isinstance(path, str | os.PathLike) else str(path)
    size = None if "://" in place else size_of(Path(place))
    known = {"bytes": size, "seconds": None if seconds is None else round(seconds, 6)}
    run.event("checkpoint", path=place, **{name: value for name, value in known.items() if value is not None})


def size_of(path: Path) -> int | None:
    """Bytes of a file, or of all files in a folder; None when it is not there, has none, or too many of them."""
    until, size, count = monotonic() + LOOK_SECONDS, 0, 0
    try:
        for count, one in enumerate(_files(path), 1):
            if count > FILES or monotonic() > until:
                return None
            size += one.stat().st_size
    except OSError:
        return None
    return size if count else None


def _files(path: Path) -> Iterator[Path]:
    return (one for one in path.rglob("*") if one.is_file()) if path.is_dir() else iter((path,))
