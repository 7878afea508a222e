"""The default run, which the functions of the package act on."""

import copyreg
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from trackside.environment.config import as_json, as_mapping, plain
from trackside.environment.exit_status import Status, checked_status
from trackside.environment.identity import identify
from trackside.environment.process_info import correlation
from trackside.environment.restart import restart, resume_path
from trackside.environment.switches import OFF
from trackside.packing import text_of, writable
from trackside.process_state import ProcessState
from trackside.roles import stated
from trackside.row_queue import RowQueue, whole_number
from trackside.run import Run
from trackside.totals.flops import flops
from trackside.totals.phases import Phase, PhaseMark, TimedLoader
from trackside.training_log import warn
from trackside.transport.session import Session
from trackside.wire import Identity, ProfilePlan

if TYPE_CHECKING:
    from trackside.pytorch.watcher import Watcher


def plan(profile: Any) -> ProfilePlan | None:
    """Return a plan from its fields, of a mapping or an object of OmegaConf; None after one warning if it is none."""
    if profile is None:
        return None
    known = ProfilePlan.__struct_fields__
    try:
        fields = plain(as_mapping(profile))
        if unknown := fields.keys() - set(known):
            raise ValueError(f"{', '.join(map(repr, unknown))} is none of its fields, which are {', '.join(known)}")  # noqa: TRY301
        return msgspec.convert(fields, ProfilePlan)
    except Exception as error:  # noqa: BLE001  a mapping of the user's own may raise anything
        warn(f"profile: {text_of(error):.300}; the run goes on without this plan")
        return None


T = TypeVar("T")

RANKS = ("all", "zero")  # values of the argument `ranks`: which ranks push


def init(
    name: str | None = None,
    *,
    id: str | None = None,  # noqa: A002  the field's word for it
    config: Any = None,
    tags: Iterable[str] = (),
    total_steps: int | None = None,
    flops_per_step: float | None = None,
    flops_per_token: float | None = None,
    parameters: float | None = None,
    peak_flops: float | None = None,
    endpoint: str | None = None,
    enabled: bool = True,
    ranks: Literal["all", "zero"] | None = None,
    roles: Mapping[str, str] | None = None,
    profile: Mapping[str, Any] | None = None,
    page: bool = False,
) -> Run:
    """Open a run, and make it the default run of `push` and the other functions.

    Args:
        name: Name that people see. Default: ``$TRACKSIDE_RUN_NAME``, else the script's name with the cluster's job id.
        id: Identifier of the run, the same on all ranks. Default: ``$TRACKSIDE_RUN_ID``, else the launcher's, else
            random. That of an ended run resumes it as a new attempt.
        config: Configuration, stored as JSON of at most 1 MiB: a mapping, a dataclass or any object with fields. Values
            that JSON does not have become text. One that cannot be read is left out, with a warning.
        tags: Words to find the run by. Default: ``$TRACKSIDE_TAGS``, separated by commas.
        total_steps: Number of steps the run will have, for its progress and the remaining time.
        flops_per_step: Floating-point operations of the model in a step, of this rank's share, for MFU. Of this and the
            next two, the first counts. One that is no positive number is left out, with a warning.
        flops_per_token: Floating-point operations of the model for a token, if you push ``tokens``.
        parameters: Number of parameters; six operations for each and token (Kaplan et al. 2020; PaLM, appendix B).
        peak_flops: Peak FLOP/s of this rank's devices. Default: the GPU's for dense tensor operations in bfloat16.
        endpoint: Address of the daemon, ``ipc://PATH`` or ``tcp://HOST:PORT``. Default: ``$TRACKSIDE_ENDPOINT``, else
            the usual sockets.
        enabled: False opens a run that does nothing; so does ``$TRACKSIDE_DISABLED=1``.
        ranks: ``zero`` lets only rank 0 push. Default: ``$TRACKSIDE_RANKS``, else ``all``. The rank comes from the
            launcher's environment or an initialized process group.
        roles: What keys are whose names do not show it: ``{"loss": "objective"}``. Keys may have ``*`` and ``?``. A
            role is ``loss``, ``objective`` (it may rise in a healthy run), ``reward``, ``evaluation``, ``gradient``,
            ``rate``, ``update``, ``duration`` or ``memory``; others are left out, with a warning.
        profile: Plan of profiles: ``{"epochs": [1, 5], "steps": 50, "warmup": 5}`` records 50 optimizer steps 5 steps
            after the pushed ``epoch`` has reached 1 and 5; without ``epochs`` once. ``shapes``, ``stacks`` and
            ``memory`` are options. PyTorch records itself with the variables of docs/captures.md, else the client.
        page: Whether alerts of this run may page somebody on a machine of many users: it sets the tag ``page``.

    Raises:
        TypeError: ``total_steps`` is not a whole number.
        ValueError: ``total_steps`` is negative or beyond int64, or ``ranks`` is another word.

    Example:
        >>> run = trackside.init("baseline", config=args, total_steps=10_000)
    """
    try:
        total_steps = None if total_steps is None else whole_number(total_steps)
    except (TypeError, ValueError):
        raise TypeError(f"total_steps is {total_steps!r}, which is not a whole number") from None
    if total_steps is not None and not 0 <= total_steps < 2**63:
        raise ValueError(f"total_steps is {total_steps}, which is not between 0 and 2**63 - 1")
    words = (tags,) if isinstance(tags, str) else tuple(map(str, tags))
    words = (*(words or os.environ.get("TRACKSIDE_TAGS", "").split(",")), *(("page",) if page else ()))
    words = tuple(writable(word.strip()) for word in words if word.strip())
    enabled = enabled and os.environ.get("TRACKSIDE_DISABLED", "").lower() in OFF
    pushing = _pushing_ranks(ranks)
    work = flops(flops_per_step, flops_per_token, parameters, peak_flops)
    session = Session(
        identify(name, id, names=_process.names),
        as_json(config),
        words,
        total_steps,
        flops=work,
        roles=stated(roles),
        profile=plan(profile),
    )
    with _process.lock:
        sender = None
        if enabled and (pushing == "all" or session.identity.rank == 0):
            sender = _process.sender(endpoint)
        run = _process.default = Run(RowQueue(session, sender, _process.queues.discard))
        _process.opener = None
        _bind_default()
        if sender is not None:
            sender.add(session)
            _process.queues.add(run.queue)
            _process.follow_cells()
            _process.follow_compilations()
            _record_restart(run)
    return run


def _record_restart(run: Run) -> None:
    """Record why this command has started again, in the first run of rank 0."""
    number, cause = restart()
    if number and not _process.is_restart_recorded and run.queue.session.identity.rank == 0:
        _process.is_restart_recorded = True
        run.event("restart", number=number, cause=cause, checkpoint=str(resume_path() or ""))


def open_run() -> Run | None:
    """Return the default run if it is open: not ended, and not inherited from the parent by a forked child."""
    run = _process.default
    return run if run is not None and run is not _process.inherited and run.is_open else None


@contextmanager
def own_default() -> Iterator[None]:
    """Let this thread have a default run of its own meanwhile, which ends with this."""
    with _process.lock:
        _process.own[get_ident()] = None
        _bind_default()
    try:
        yield
    finally:
        _end_default("finished")
        with _process.lock:
            _process.own.pop(get_ident(), None)  # a forked child has none
            _bind_default()


def _bind_default() -> None:
    """Let the functions of the package use the queue of the default run; with one for a thread, each use finds its own."""
    run = _process.default
    _default_run.queue = _default_queue if run is None or _process.own else run.queue


def open_by(opener: Callable[[], object]) -> None:
    """Open the next default run by this function, which calls `init`, unless the training code calls `init` before."""
    _process.expect(opener)


def phase(name: str) -> Phase:
    """Time a phase, as `Run.phase`. The run is resolved when the phase begins."""
    return Phase(_default_queue.mark, name)


def data(loader: Iterable[T], describe: Callable[[Any], object] | None = None) -> TimedLoader[T]:
    """Wrap a data loader, as `Run.data`. The run is resolved when an iteration begins."""
    return TimedLoader(_default_queue.mark, loader, _default_queue.join_next_push, describe)


def watch(
    model: Any,
    optimizer: Any = None,
    *,
    layers: str | Sequence[str] | None = None,
    distributions: bool = False,
    replicas: bool | None = None,
    replicas_except: str | Sequence[str] = (),
) -> "Watcher":
    """Measure a PyTorch model, as `Run.watch`."""
    return _default().watch(
        model,
        optimizer,
        layers=layers,
        distributions=distributions,
        replicas=replicas,
        replicas_except=replicas_except,
    )


def observe(
    model: Any,
    optimizer: Any = None,
    *,
    weights: bool = True,
    gradients: bool = True,
    activations: str | Sequence[str] = (),
    attention: str | Sequence[str] = (),
    every: int | str = "auto",
) -> "Watcher":
    """Measure distributions inside a PyTorch model, as `Run.observe`."""
    chosen = {"weights": weights, "gradients": gradients, "activations": activations, "attention": attention}
    return _default().observe(model, optimizer, every=every, **chosen)  # type: ignore[arg-type]


def correlation_id() -> str:
    """Return the id by which other systems refer to this job; empty for none.

    It is ``$TRACKSIDE_CORRELATION_ID``, else ``$TRACEPARENT``. The run, its alerts and the daemon's log have it too.
    """
    return correlation(os.environ)


def finish(status: Status = "finished") -> None:
    """End the run, as `Run.finish`. The next push opens another one.

    In a forked child this leaves the parent's run alone.
    """
    _end_default(checked_status(status))


def end_all() -> None:
    """End all runs: the process ends."""
    _process.exit()


class DefaultQueue:
    """Queue of the default run, which each use resolves: what an open queue becomes in another process.

    Its methods, such as `RowQueue.push`, open a run if there is none.
    """

    direct_rows = None  # so that a push calls `RowQueue.push`, and no mere read opens a run

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copy and pickle ask for some, and must open no run
            raise AttributeError(name)
        return getattr(_default().queue, name)

    def mark(self, moment: int, mark: PhaseMark) -> None:
        """Queue the begin or the end of a phase, as `RowQueue.mark`."""
        run = _default() if mark.enters else _process.default  # the end of a phase opens no run
        if run is not None:
            run.queue.mark(moment, mark)

    def join_next_push(self, values: Mapping[str, Any]) -> None:
        """Add measured values to the next push, as `RowQueue.join_next_push`; they open no run."""
        if _process.default is not None:
            _process.default.queue.join_next_push(values)

    def close(self, status: str, cause: str = "") -> None:
        """End the default run, as `RowQueue.close`."""
        _end_default(status, cause)

    def __reduce__(self) -> str:
        return "_default_queue"


def _reduce_queue(queue: RowQueue) -> tuple[Callable[..., object], tuple[Identity | None]]:
    return _unpickled_queue, (None if queue.is_open else queue.session.identity,)


def _unpickled_queue(identity: Identity | None) -> DefaultQueue | RowQueue:
    """Return what a pickled queue becomes: a closed one if it has an identity, else the default run's."""
    return _default_queue if identity is None else RowQueue(Session(identity), None)


def _end_default(status: str, cause: str = "") -> None:
    with _process.lock:
        run = _process.default
        if run is None or run is _process.inherited:
            return
        _process.default = None
        _bind_default()
    run.queue.close(status, cause)  # without the lock: it can wait for seconds, and another thread's push opens a run


def _default() -> Run:
    with _process.lock:
        enabled = not is_loader_worker()
        is_over = _process.default is None or not _process.default.is_open
        if is_over and _process.opener is not None and enabled:
            opener, _process.opener = _process.opener, None
            opener()
        return _process.default or init(enabled=enabled)


def _pushing_ranks(ranks: str | None) -> str:
    """Return ``all`` or ``zero``: the argument, else the environment variable."""
    if ranks is not None:
        if ranks not in RANKS:
            raise ValueError(f"ranks is {ranks!r}, which is none of {', '.join(RANKS)}")
        return ranks
    variable = os.environ.get("TRACKSIDE_RANKS", "").strip().lower() or "all"
    if variable not in RANKS:
        warn(f"$TRACKSIDE_RANKS is {variable!r}, which is none of {', '.join(RANKS)}; all ranks push")
        return "all"
    return variable


def is_loader_worker() -> bool:
    """Return whether this is a worker process of PyTorch's DataLoader: a dataset's pushes there open no run."""
    # A process that has not imported torch is no such worker, and importing it takes seconds.
    worker = getattr(sys.modules.get("torch.utils.data"), "get_worker_info", None)
    return worker is not None and worker() is not None


_process = ProcessState()
_default_queue: Any = DefaultQueue()
_default_run = Run(_default_queue)  # its queue is that of the default run while there is one
default = _default_run  # for hooks, which compare its queue with theirs
push = _default_run.push
log = _default_run.log
log_image = _default_run.log_image
log_text = _default_run.log_text
log_table = _default_run.log_table
log_histogram = _default_run.log_histogram
event = _default_run.event
summary = _default_run.summary
alert = _default_run.alert
# All that refers to a run refers to its queue: phases, timed loaders, and what keeps one of them.
copyreg.pickle(RowQueue, _reduce_queue)  # type: ignore[arg-type]  # its stub wants a pickle of the same class
os.register_at_fork(after_in_child=_process.forked)
