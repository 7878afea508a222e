"""The run of an integration, and the checkpoints that a framework writes. Nothing here imports a framework."""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Mapping
from functools import wraps
from inspect import signature
from pathlib import Path
from threading import get_ident
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from trackside.default_run import init, open_run
from trackside.environment.config import as_mapping, plain
from trackside.environment.exit_status import exception_fields, outcome
from trackside.environment.identity import ray_run
from trackside.environment.process_info import is_interactive
from trackside.environment.restart import resume_path
from trackside.packing import text_of
from trackside.training_log import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from trackside.run import Run
    from trackside.totals.phases import Phase


FILES = 10_000  # limit of files whose sizes are summed for a checkpoint; one with more is reported without its size
SIZE_SECONDS = 0.5  # limit of the time for summing them

# Phase from the end of a training to the end of the process, in which the daemon expects no steps.
AFTER_TRAINING = "evaluation"

ID = re.compile(
    r"[\w.:@+=/ -]{1,128}", re.ASCII
)  # what is accepted from a checkpoint as a run's id: anyone may have written it

F = TypeVar("F", bound="Callable[..., Any]")
T = TypeVar("T")

_failed: set[str] = set()
_resting: list[RunAdapter] = []


def begin_watch(run: Run, model: Any, optimizer: Any, wanted: bool | str | Mapping[str, Any]) -> Any:
    """Watch a model as the argument ``watch`` of a callback asks for.

    Returns:
        The `Watcher`; None after one warning if the argument cannot be used, which costs the run nothing else.
    """
    if isinstance(wanted, Mapping):
        return guarded("watch", lambda: run.observe(model, optimizer, **plain(wanted)))
    return guarded("watch", lambda: run.watch(model, optimizer, distributions=wanted == "distributions"))


class RunAdapter:
    """The run that the training code has opened, else a run that this opens and ends.

    Args:
        name: As for `trackside.init`.
        arguments: Further arguments of `trackside.init`.

    """

    def __init__(self, name: str | None, arguments: Mapping[str, Any]) -> None:
        self.name = name
        self._model: weakref.ref[Any] | None = None
        self._arguments = dict(arguments)
        config = self._arguments.pop("config", None)
        self._config = {} if config is None else dict(guarded("the configuration", as_mapping, config) or {})
        self._run: Run | None = None
        self._is_own = False
        self._is_over = False
        self._was_open = False
        self._resumed = ""
        self._evaluation: Phase | None = None
        self._rests_again = False
        self._rests_in = 0  # a thread: others may train beside it

    @property
    def model(self) -> Any:
        """The model, if a second training may go on with it. This lives as long as the process, and keeps none alive."""
        return None if self._model is None else self._model()

    @model.setter
    def model(self, model: Any) -> None:
        self._model = None if model is None else weakref.ref(model)

    @property
    def run(self) -> Run | None:
        """The run; None before it is opened."""
        return self._run

    @property
    def _rests(self) -> bool:
        """No training code that this knows of goes on with the run after the training."""
        return self._is_own

    def is_of_thread(self, thread: int) -> bool:
        """Return whether a run of *thread* is this thread's, too: only those of trials beside each other are not."""
        return thread == get_ident() or (self._run is not None and self._run is open_run())

    def begin(self) -> Run:
        """Return the run at the begin of a training: a new one if the user has ended that of the last training."""
        if self._is_own and self._was_open and self._run is not None and not self._run.is_open:
            self._is_over = True
        return self.open()

    def open(self) -> Run:
        """Return the run. Open it first, or resume it if this had ended it; end the resting run of another adapter."""
        run = self._run
        if run is not None and run.is_open and not _resting:  # the usual case, at each step
            return run
        for resting in _resting[:]:
            if resting is self:
                self._wake()
            elif resting.is_of_thread(resting._rests_in):  # noqa: SLF001  another adapter
                resting.end()
        replaced = run is not None and not self._is_own and not run.is_open and open_run() is not None
        if run is None or self._is_over or replaced:
            users = open_run()
            run = users or self._init(run if self._is_own else None)
            self._run, self._is_own, self._is_over, self._was_open = run, users is None, False, run.is_open
        return run

    def evaluates(self, *, begins: bool) -> None:
        """Begin or end the phase of an evaluation; after the training, the run rests again."""
        phase, self._evaluation = self._evaluation, None
        if begins:
            self._rests_again = self in _resting
            self._evaluation = phase or self.open().phase("eval").__enter__()
        elif phase is not None:
            phase.__exit__()
            if self._rests_again:
                self.rest()

    def state(self) -> dict[str, str]:
        """Return what a checkpoint carries so that a resume continues the run; empty before the run is opened."""
        return {} if self._run is None else {"run": self._run.id}

    def resume(self, state: object) -> None:
        """Continue the run of a checkpoint, whose `state` this is, with the next run that this opens.

        A run that the arguments, the environment or Ray names wins. An id that is not of the form `ID` is left out, with a
        warning.
        """
        run = state.get("run") if isinstance(state, Mapping) else None
        if run is None or os.environ.get("TRACKSIDE_RUN_ID") or ray_run(os.environ) is not None:
            return
        if isinstance(run, str) and ID.fullmatch(run) is not None:
            if self._is_own and self._run is not None and self._run.is_open and self._run.id != run:
                way = "load the checkpoint before the run is opened, or set TRACKSIDE_RUN_ID"
                warn(f"the checkpoint is of run {run}, but run {self._run.id} is open; to continue the former, {way}")
            else:
                self._resumed = run
        else:
            warn(
                f"the checkpoint's run id {str(run)[:40]!r} is not 1 to 128 letters, digits or .:@+=/_- ; this is a new run"
            )

    def describe(self, config: Mapping[str, Any] | None = None, total_steps: int | None = None) -> None:
        """Add details to a run that this opened; the user's own values win. The user's run is left as it is."""
        self._config = {**(config or {}), **self._config}
        total_steps = None if "total_steps" in self._arguments else total_steps
        if self._is_own and self._run is not None:
            self._run.queue.describe(self._config or None, total_steps)

    def end(self, error: BaseException | None = None, status: str = "") -> None:
        """End a run that this opened, with *status*, or else with the status that follows from the exception."""
        self._wake()
        if not self._is_own or self._run is None:
            return
        self._is_over = True
        if status:
            self._run.queue.close(status)
        elif type(error).__name__ == "SIGTERMException":  # Lightning's; it derives from SystemExit
            self._run.queue.close("stopped", "SIGTERM")
        else:
            self._run.queue.exception(exception_fields(error))
            self._run.queue.close(*outcome(None if error is None else type(error), error))

    def rest(self) -> None:
        """Leave the run open after the training, for evaluations and checkpoints; it ends with the process.

        The process of a notebook may end days later: there the run ends now.
        """
        if is_interactive():
            self.end()
        elif self._rests and self._run is not None and self not in _resting:
            _resting.append(self)
            self._rests_in = get_ident()
            self._run.phase(AFTER_TRAINING).__enter__()

    def _wake(self) -> None:
        if self in _resting and self._run is not None:
            _resting.remove(self)
            self._run.phase(AFTER_TRAINING).__exit__(None, None, None)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the run, which belongs to this process: spawned processes get a pickle."""
        unset = {"_is_own": False, "_is_over": False, "_was_open": False}
        return {**vars(self), "_model": None, "_run": None, "_evaluation": None, **unset}

    def _init(self, before: Run | None) -> Run:
        id_, self._resumed = self._resumed or ("" if before is None else before.id), ""
        again = {"id": id_} if id_ else {}
        return init(self.name, **{"config": self._config or None, **again, **self._arguments})


def guarded(what: str, call: Callable[..., T], *given: Any) -> T | None:
    """Return ``call(*given)``; if it raises, log that once for *what*, and return None."""
    try:
        return call(*given)
    except Exception as error:  # noqa: BLE001  a framework's objects may hold anything, and training must go on
        warn_failed(what, error)
        return None


def never_raises(hook: F) -> F:
    """Guard a method as `guarded` does."""

    @wraps(hook)
    def called(self: object, *given: Any, **named: Any) -> Any:
        try:
            return hook(self, *given, **named)
        except Exception as error:  # noqa: BLE001  the same
            warn_failed(f"{type(self).__name__}.{hook.__name__}", error)
            return None

    return called  # type: ignore[return-value]


class RunCallback:
    """The base of a framework's callback, which pushes to the run of its adapter.

    Args:
        name: As for `trackside.init`.
        arguments: Further arguments of `trackside.init`: ``tags=["baseline"]``, ``config``, …

    Attributes:
        adapter: Opens and ends the run.
    """

    def __init__(self, name: str | None = None, **arguments: Any) -> None:
        super().__init__()
        self.adapter = RunAdapter(name, arguments)

    @never_raises
    def evaluation_begins(self, *_: Any, **__: Any) -> None:
        """Begin an evaluation; frameworks call this by a name of their own, as what follows."""
        self.adapter.evaluates(begins=True)

    @never_raises
    def evaluation_ends(self, *_: Any, **__: Any) -> None:
        """End an evaluation."""
        self.adapter.evaluates(begins=False)

    @never_raises
    def training_ends(self, *_: Any, **__: Any) -> None:
        """Leave the run to what follows."""
        self.adapter.rest()

    @never_raises
    def run_ends(self, *_: Any, **__: Any) -> None:
        """End the run."""
        self.adapter.end()


def warn_failed(what: str, error: Exception) -> None:
    """Log once for *what* that it has failed."""
    if what not in _failed:
        _failed.add(what)
        warn(f"{what}: {type(error).__name__}: {text_of(error)}; training goes on without these values")


def save_checkpoint(run: Run, save: Callable[[], T], path_of: Callable[[T], object], *, reports: bool = True) -> T:
    """Write a checkpoint as a phase, report it as an event, and return what *save* returns.

    Args:
        run: The run.
        save: Writes the checkpoint.
        path_of: Returns the file or folder, given what *save* returned.
        reports: Report the checkpoint; one rank alone should.
    """
    since = monotonic()
    with run.phase("checkpoint"):
        result = save()
        if reports:
            seconds = monotonic() - since
            guarded("a checkpoint", lambda: report_checkpoint(run, path_of(result), seconds))
    return result


def report_checkpoint(run: Run, path: object, seconds: float | None = None) -> None:
    """Record an event for a checkpoint in a file or a folder, with its size in bytes and the seconds it took."""
    place = os.fspath(path) if isinstance(path, str | os.PathLike) else str(path)
    size = None if "://" in place else size_of(Path(place))  # not in an object store
    fields = {"bytes": size, "seconds": None if seconds is None else round(seconds, 6)}
    run.event("checkpoint", path=place, **{name: value for name, value in fields.items() if value is not None})


def size_of(path: Path, files: int = FILES, seconds: float = SIZE_SECONDS) -> int | None:
    """Return the bytes of a file, or of all files in a folder; None if it is absent, empty, or has too many files."""
    deadline, size, count = monotonic() + seconds, 0, 0
    try:
        for count, file in enumerate(_files(path), 1):
            if count > files or monotonic() > deadline:
                return None
            size += file.stat().st_size
    except OSError:
        return None
    return size if count else None


def _files(path: Path) -> Iterator[Path]:
    return (file for file in path.rglob("*") if file.is_file()) if path.is_dir() else iter((path,))


def resume_by(owner: type, method: str, parameter: str, places: Callable[[Any], Iterable[Any]]) -> None:
    """Make a method load the checkpoint of `trackside.resume_path`; do nothing if there is none.

    Only the first call of the process is changed, if the caller gives no checkpoint or asks for the last, and only if the
    checkpoint lies in a directory of the object, since others may belong to another training.

    Args:
        owner: The framework's class.
        method: Name of its method.
        parameter: Name of the argument with the checkpoint: None, True and ``last`` name none.
        places: Returns the directories of an object.
    """
    path = resume_path()
    if path is None:
        return
    original, left = getattr(owner, method), [path]

    def changed(given: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        call = signature(original).bind(*given, **named)
        own = (Path(place).absolute() for place in places(given[0]) if place)
        if call.arguments.get(parameter) not in {None, True, "last"} or not any(
            map(path.absolute().is_relative_to, own)
        ):
            return given, named
        left.clear()
        call.arguments[parameter] = str(path)
        return call.args, call.kwargs

    @wraps(original)
    def resuming(*given: Any, **named: Any) -> Any:
        if left:
            given, named = guarded("the checkpoint of the restart", changed, given, named) or (given, named)
        return original(*given, **named)

    setattr(owner, method, resuming)
