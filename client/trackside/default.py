"""The default run, which the package's own functions act on."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, TypeVar

from trackside.config import as_json
from trackside.ending import STATUSES
from trackside.identity import identify
from trackside.packing import writable
from trackside.phases import Phase, Waits
from trackside.process import Process
from trackside.run import Run, whole
from trackside.session import Session

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trackside.phases import Mark
    from trackside.watcher import Watcher

T = TypeVar("T")


def init(
    name: str | None = None,
    *,
    id: str | None = None,  # noqa: A002  the field's word for it
    config: Mapping[str, Any] | None = None,
    tags: Iterable[str] = (),
    total_steps: int | None = None,
    endpoint: str | None = None,
    enabled: bool = True,
) -> Run:
    """Open a run, and make it the one that `push` and `finish` of the module act on.

    Args:
        name: What people see; default ``$TRACKSIDE_RUN_NAME``, else the script's name with the cluster's job id.
        id: The run's id, the same on all ranks; default ``$TRACKSIDE_RUN_ID``, else the launcher's, else random. The id
            of an ended run resumes it.
        config: Stored with the run, as JSON; what JSON does not have is written as its text. At most 1 MiB.
        tags: Words to find the run by; default ``$TRACKSIDE_TAGS``, separated by commas.
        total_steps: How many steps the run will have: gives progress and time left.
        endpoint: Where the daemon listens, ``ipc://PATH`` or ``tcp://HOST:PORT``; default ``$TRACKSIDE_ENDPOINT``,
            else it is looked for.
        enabled: False makes a run that does nothing; so does ``$TRACKSIDE_DISABLED=1``.

    Raises:
        TypeError: ``config`` is no mapping, or ``total_steps`` no whole number.
        ValueError: ``total_steps`` is negative or beyond int64.
    """
    try:
        total_steps = None if total_steps is None else whole(total_steps)
    except (TypeError, ValueError):
        raise TypeError(f"total_steps is {total_steps!r}, which is no whole number") from None
    if total_steps is not None and not 0 <= total_steps < 2**63:
        raise ValueError(f"total_steps is {total_steps}, which is no number of steps")
    words = ((tags,) if isinstance(tags, str) else tuple(map(str, tags))) or os.environ.get("TRACKSIDE_TAGS", "").split(
        ","
    )
    words = tuple(writable(word.strip()) for word in words if word.strip())
    session = Session(identify(name, id), as_json(config), words, total_steps)
    with _process.lock:
        sender = None
        if enabled and os.environ.get("TRACKSIDE_DISABLED", "").lower() in {"", "0", "false", "no", "off"}:
            sender = _process.sender(endpoint)
        run = _process.default = Run(session, sender, _process.runs.discard)
        if sender is not None:
            sender.add(session)
            _process.runs.add(run)
    return run


def push(values: Mapping[str, Any] | None = None, /, *, step: int | None = None, **named: Any) -> None:
    """`Run.push` of the default run; the first push opens one."""
    (_process.default or _default())._push(values, step, named)  # noqa: SLF001


def phase(name: str) -> Phase:
    """`Run.phase` of the default run, which is looked up when the phase is entered."""

    def tell(moment: int, mark: Mark) -> None:
        run = _default() if mark.enters else _process.default  # the end of a phase opens no run
        if run is not None:
            run._mark(moment, mark)  # noqa: SLF001

    return Phase(tell, name)


def data(loader: Iterable[T]) -> Waits[T]:
    """`Run.data` of the default run."""
    return _default().data(loader)


def watch(model: Any, optimizer: Any = None, *, layers: str | Sequence[str] | None = None) -> Watcher:
    """`Run.watch` of the default run."""
    return _default().watch(model, optimizer, layers=layers)


def event(kind: str, /, **fields: Any) -> None:
    """`Run.event` of the default run."""
    _default().event(kind, **fields)


def alert(title: str, text: str = "", severity: str = "warning") -> None:
    """`Run.alert` of the default run."""
    _default().alert(title, text, severity)


def finish(status: str = "finished") -> None:
    """`Run.finish` of the default run; the next push would open another. A forked child has no part in its parent's."""
    if status not in STATUSES:
        raise ValueError(f"status {status!r} is none of {', '.join(STATUSES)}")
    with _process.lock:
        run = _process.default
        if run is None or run is _process.inherited:
            return
        _process.default = None
    run.finish(status)


def _default() -> Run:
    with _process.lock:
        return _process.default or init(enabled=not _loads_data())


def _loads_data() -> bool:
    """Whether this is a worker of PyTorch's DataLoader: what a dataset pushes there opens no run of its own."""
    worker = getattr(sys.modules.get("torch.utils.data"), "get_worker_info", None)
    return worker is not None and worker() is not None


_process = Process()
os.register_at_fork(after_in_child=_process.forked)
