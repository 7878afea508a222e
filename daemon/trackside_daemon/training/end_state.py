"""The end of a session, from its bye and from the exit of its process."""

import signal
from typing import NamedTuple

from trackside.wire import Bye
from trackside_daemon.linux.process_exit import signal_name
from trackside_daemon.model.records import ENDED

UNKNOWN = "unknown"  # the cause of an end whose cause cannot be determined

_STOP_SIGNALS = frozenset((signal.SIGTERM, signal.SIGINT))

# Signals by which a process ends itself.
_CRASHES = frozenset((signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL))


class Exit(NamedTuple):
    """The end of a process."""

    # The exit status, or a signal's number below 0, as from `os.waitstatus_to_exitcode`; None if unknown.
    code: int | None
    oom: bool = False  # the kernel's OOM killer was active in the process's cgroup

    def fields(self) -> dict[str, int | str]:
        """Return ``status``, or ``signal`` with its name; nothing if the code is unknown."""
        if self.code is None:
            return {}
        return {"status": self.code} if self.code >= 0 else {"signal": signal_name(-self.code)}


def verdict(bye: Bye | None, ended: Exit | None, *, daemonic: bool = False, waits: bool = False) -> tuple[str, str]:
    """Return a session's final state and a short cause, which is empty if there is nothing to report.

    The bye decides. If it `is_open`, a bad exit status or a crash overrules it, but no signal that others send: launchers
    such as Ray kill processes that have finished. What `sys.exit` was called with counts as the exit status where that is
    unknown, and adds its text to it.

    Args:
        bye: The session's bye; None if it sent none.
        ended: The end of its process; None while it is alive, and where it cannot be observed.
        daemonic: SIGTERM is the usual end of its process: `ProcessInfo.daemonic`.
        waits: The end of its process is soon to be observed.
    """
    code = None if ended is None else ended.code
    if bye is not None and (code is None or not is_open(bye) or (code < 0 and -code not in _CRASHES)):
        requested = bye.requested if is_open(bye) and not waits else ""
        return (bye.status if bye.status in ENDED and not requested else "failed"), requested or bye.cause
    if ended is None or code is None:
        return "lost", UNKNOWN
    if daemonic and code == -signal.SIGTERM:
        return "finished", ""
    if code >= 0:
        status, text = f"exit status {code}", "" if bye is None else bye.requested
        return ("failed", text if text.partition(":")[0] == status else status) if code else ("finished", "")
    if -code == signal.SIGKILL and ended.oom:  # the counter alone may be about another process of the cgroup
        return "failed", "OOM killed"
    return "stopped" if -code in _STOP_SIGNALS else "failed", signal_name(-code)


def is_open(bye: Bye) -> bool:
    """Return whether the exit can overrule the bye: atexit reports a good end also after ``sys.exit(3)``."""
    return bye.provisional and bye.status == "finished"
