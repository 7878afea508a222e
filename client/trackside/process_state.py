"""State that all runs of one process share: their senders, the process's end, and its forks."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import monotonic, monotonic_ns
from typing import TYPE_CHECKING

from trackside.captures.kineto import cancel_recording
from trackside.environment.exit_status import exception_fields, outcome, watch_exit_calls
from trackside.totals.phases import COMPILE, PhaseMark
from trackside.training_log import warn
from trackside.transport.close_timeout import flush_timeout


def after_cells(callback: Callable[[], object]) -> bool:
    """Call *callback* after each cell from now on, and return whether there are any."""
    with suppress(Exception):  # no IPython, or one that only a library has imported
        # IPython passes the result to a callback with a parameter.
        sys.modules["IPython"].get_ipython().events.register("post_run_cell", lambda _: callback())
        return True
    return False


try:
    from trackside.transport.sender import Sender
except ImportError as error:  # ZeroMQ's binding loads in the first interpreter of a process alone
    unsendable = str(error)
else:
    unsendable = ""

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, TracebackType

    from trackside.row_queue import RowQueue
    from trackside.run import Run


class ProcessState:
    """State that all runs of one process share.

    Attributes:
        lock: Guards the default run.
        opener: Opens the default run at its first use, in place of `init` with no arguments; None if nothing is to do that.
        inherited: In a forked child, the parent's default run.
        own: The default runs of threads that have one of their own, by thread.
        queues: Queues of the open runs.
        names: The first name that was given to the run of each id that a launcher gave.
        outcome: Status and cause of the process's end, as far as it is known.
        exception: The exception that ends the process, by `exception_fields`; empty for none.
        is_restart_recorded: A run has the event of the restart that began this process.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()  # an RLock, since opening the default run calls `init`
        self.own: dict[int, Run | None] = {}
        self._default: Run | None = None
        self.opener: Callable[[], object] | None = None
        self.inherited: Run | None = None
        self.queues: set[RowQueue] = set()
        self.names: dict[str, str] = {}
        self.outcome = ("finished", "")
        self.exception: dict[str, str] = {}
        self.is_restart_recorded = False
        self._senders: dict[str | None, Sender] = {}
        self._parents: list[Sender | RowQueue] = []
        self._watching = self._exiting = self._follows_cells = self._follows_jax = False

    @property
    def default(self) -> Run | None:
        """The default run, of this thread if it has one of its own; None before it is opened and after it has ended."""
        return self.own.get(threading.get_ident(), self._default)

    @default.setter
    def default(self, run: Run | None) -> None:
        if (thread := threading.get_ident()) in self.own:
            self.own[thread] = run
        else:
            self._default = run

    def sender(self, endpoint: str | None) -> Sender | None:
        """Return the sender for an endpoint, None if there can be none; the first call also watches for the exit."""
        if self._exiting:  # nothing would stop another sender
            return None
        if endpoint not in self._senders or not self._senders[endpoint].alive:
            try:
                if unsendable:
                    raise RuntimeError(unsendable)  # noqa: TRY301
                self._senders[endpoint] = Sender(endpoint)
            except RuntimeError as error:
                warn(f"nothing can be sent, training goes on: {error}")
                return None
            self._watch_child_exit()
        if not self._watching:
            self._watch_exit()
        return self._senders[endpoint]

    def expect(self, opener: Callable[[], object]) -> None:
        """Open the default run by this function at its first use, or when an exception ends the process before."""
        self.opener = opener
        if not self._watching:
            self._watch_exit()

    def follow_cells(self) -> None:
        """Report the end of each cell of a notebook to the open runs."""
        self._follows_cells = self._follows_cells or after_cells(self._end_cell)

    def follow_compilations(self) -> None:
        """Report each compilation of JAX to the open runs, as a phase."""
        monitoring = getattr(sys.modules.get("jax"), "monitoring", None)
        if monitoring is not None and not self._follows_jax:
            self._follows_jax = True
            monitoring.register_event_duration_secs_listener(self._compiled)

    def _compiled(self, event: str, seconds: float, **_: object) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            ended = monotonic_ns()
            for queue in [queue for queue in list(self.queues) if queue.thread == threading.get_ident()]:
                queue.mark(ended - int(seconds * 1e9), PhaseMark(enters=True, phase=COMPILE, automatic=True))
                queue.mark(ended, PhaseMark(enters=False, phase=COMPILE, automatic=True))

    def _end_cell(self) -> None:
        for queue in list(self.queues):
            queue.end_cell()

    def _watch_child_exit(self) -> None:
        # A child of multiprocessing catches what its target raises, and may end by os._exit, which calls no atexit.
        processes = sys.modules.get("multiprocessing.process")
        if processes is None or processes.parent_process() is None:
            return
        from multiprocessing.util import Finalize

        caller = processes.BaseProcess._bootstrap.__code__  # noqa: SLF001

        def caught(*_: object) -> None:
            kind, error, traceback = sys.exc_info()
            # Another exception may be current, which the parent handled when it forked this process.
            if traceback is not None and traceback.tb_frame.f_code is caller:
                self.outcome, self.exception = outcome(kind, error), exception_fields(error)

        def ended() -> None:
            # Before Python 3.13, multiprocessing runs finalizers in a `finally` around the target: its exception is still current.
            caught()
            self.exit()

        Finalize(None, ended, exitpriority=0)  # one without a priority does not run at the end
        if sys.version_info >= (3, 13):
            _call_on_lines(caller, caught)

    def _watch_exit(self) -> None:
        self._watching = True
        watch_exit_calls()
        # An atexit function cannot find out which exception, if any, ends the process.
        previous = sys.excepthook

        def excepthook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
            self.outcome, self.exception = outcome(kind, error), exception_fields(error, traceback)
            previous(kind, error, traceback)

        sys.excepthook = excepthook

    def exit(self) -> None:
        """End all runs, which share one flush timeout; a second Ctrl-C cuts it short.

        A quarter of the time is left for the senders, which write unacknowledged messages to the spool.
        """
        if self.opener is not None and self.outcome[0] == "failed":
            self.opener()
        self._exiting = True
        timeout = flush_timeout()
        deadline = monotonic() + timeout
        ends: list[Callable[[float], None]] = [partial(self._end, queue) for queue in list(self.queues)]
        interrupted = False
        for end in (*ends, *(sender.settle for sender in self._senders.values())):
            try:
                end(0.0 if interrupted else max(0.0, deadline - timeout / 4 - monotonic()))
            except KeyboardInterrupt:
                interrupted = True
        try:
            for sender in self._senders.values():
                sender.stop(max(0.2, deadline - monotonic()))  # time to write to the spool, even if the runs used all
            self._senders = {}
        finally:  # also after Ctrl-C
            cancel_recording()

    def _end(self, queue: RowQueue, timeout: float) -> None:
        queue.exception(self.exception)
        queue.close(*self.outcome, provisional=True, timeout=timeout)

    def forked(self) -> None:
        """Stop sending in a forked child: the thread and the socket are the parent's alone."""
        for queue in self.queues:
            queue.forked()
        for sender in self._senders.values():
            sender.forked()
        self.lock = threading.RLock()  # another thread may have locked the old one, and it does not exist in the child
        self.inherited = self._default = self.default
        self.own = {}
        # References are kept: freeing objects of ZeroMQ or CUDA in the child would abort it.
        self._parents += (*self._senders.values(), *self.queues)
        self.queues = set()
        self._senders = {}


def _call_on_lines(code: CodeType, function: Callable[[CodeType, int], object]) -> None:
    """Call a function before each line of this code, also of a call that is under way; other code is not slowed."""
    if sys.version_info >= (3, 12):
        monitoring = sys.monitoring
        for tool in (3, 4):  # the other numbers are those of debuggers, profilers and the like
            if monitoring.get_tool(tool) in {None, "trackside"}:  # a parent that forked may have set it
                monitoring.free_tool_id(tool)
                monitoring.use_tool_id(tool, "trackside")
                monitoring.register_callback(tool, monitoring.events.LINE, function)
                monitoring.set_local_events(tool, code, monitoring.events.LINE)
                return
