"""The default run, which the package's own functions act on."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from trackside.environment.config import as_json
from trackside.environment.exit_status import STATUSES
from trackside.environment.identity import identify
from trackside.log import warn
from trackside.packing import writable
from trackside.run import Run, whole
from trackside.totals.flops import flops
from trackside.totals.phases import Phase, TimedLoader
from trackside.transport.process import Process
from trackside.transport.session import Session

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trackside.pytorch.watcher import Watcher
    from trackside.totals.phases import Mark

T = TypeVar("T")

RANKS = ("all", "zero")
"""Which ranks may be chosen to push."""

OFF = frozenset(("", "0", "false", "no", "off"))


def init(
    name: str | None = None,
    *,
    id: str | None = None,  # noqa: A002  the field's word for it
    config: Mapping[str, Any] | None = None,
    tags: Iterable[str] = (),
    total_steps: int | None = None,
    flops_per_step: float | None = None,
    flops_per_token: float | None = None,
    parameters: float | None = None,
    peak_flops: float | None = None,
    endpoint: str | None = None,
    enabled: bool = True,
    ranks: Literal["all", "zero"] | None = None,
) -> Run:
    """Open a run, and make it the one that `push` and `finish` of the module act on.

    Args:
        name: What people see; default ``$TRACKSIDE_RUN_NAME``, else the script's name with the cluster's job id.
        id: The run's id, the same on all ranks; default ``$TRACKSIDE_RUN_ID``, else the launcher's, else random. The id
            of an ended run resumes it.
        config: Stored with the run, as JSON; what JSON does not have is written as its text. At most 1 MiB.
        tags: Words to find the run by; default ``$TRACKSIDE_TAGS``, separated by commas.
        total_steps: How many steps the run will have: gives progress and time left.
        flops_per_step: Floating-point operations of the model in a step, of this rank's share; they are summed for MFU.
            Of these and the next two the first that is told is used, and what is no positive number is left out with
            a warning.
        flops_per_token: The same of a token, where ``tokens`` are pushed.
        parameters: How many the model has: six operations for each and a token (Kaplan et al. 2020; PaLM, appendix B).
        peak_flops: FLOP/s that this rank's devices can do at most, where the daemon does not know them, or others are
            meant; by default dense tensor operations in bfloat16.
        endpoint: Where the daemon listens, ``ipc://PATH`` or ``tcp://HOST:PORT``; default ``$TRACKSIDE_ENDPOINT``,
            else it is looked for.
        enabled: False makes a run that does nothing; so does ``$TRACKSIDE_DISABLED=1``.
        ranks: ``zero``: only rank 0 pushes, and on the others this is a run that does nothing; default
            ``$TRACKSIDE_RANKS``, else ``all``. A rank is what the launcher's environment or an initialised process group
            says.

    Raises:
        TypeError: ``config`` is no mapping, or ``total_steps`` no whole number.
        ValueError: ``total_steps`` is negative or beyond int64, or ``ranks`` another word.
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
    enabled = enabled and os.environ.get("TRACKSIDE_DISABLED", "").lower() in OFF
    speaking = _speaking(ranks)
    work = flops(flops_per_step, flops_per_token, parameters, peak_flops)
    session = Session(identify(name, id), as_json(config), words, total_steps, flops=work)
    with _process.lock:
        sender = None
        if enabled and (speaking == "all" or session.identity.rank == 0):
            sender = _process.sender(endpoint)
        run = _process.default = Run(session, sender, _process.runs.discard)
        if sender is not None:
            sender.add(session)
            _process.runs.add(run)
    return run


def opened() -> Run | None:
    """The default run if it is open; None when there is none, or it has ended, or is the parent's of a forked child."""
    run = _process.default
    return run if run is not None and run is not _process.inherited and run.is_open else None


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


def data(loader: Iterable[T]) -> TimedLoader[T]:
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


def _speaking(ranks: str | None) -> str:
    """Which ranks push, by the argument or else the environment."""
    if ranks is not None:
        if ranks not in RANKS:
            raise ValueError(f"ranks is {ranks!r}, which is none of {', '.join(RANKS)}")
        return ranks
    told = os.environ.get("TRACKSIDE_RANKS", "").strip().lower() or "all"
    if told not in RANKS:
        warn(f"$TRACKSIDE_RANKS is {told!r}, which is none of {', '.join(RANKS)}; all ranks push")
        return "all"
    return told


def _loads_data() -> bool:
    """Whether this is a worker of PyTorch's DataLoader: what a dataset pushes there opens no run of its own."""
    worker = getattr(sys.modules.get("torch.utils.data"), "get_worker_info", None)
    return worker is not None and worker() is not None


_process = Process()
os.register_at_fork(after_in_child=_process.forked)
