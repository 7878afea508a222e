"""How a session ended, of what it said itself and what the kernel knows of its process."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.linux.process_exit import signal_name
from trackside_daemon.model.records import ENDED

if TYPE_CHECKING:
    from trackside.wire import Bye

UNKNOWN = "unknown"
"""The cause of an end that nobody can tell the cause of."""

_ASKED = frozenset((signal.SIGTERM, signal.SIGINT))


class Exit(NamedTuple):
    """The end of a process.

    Attributes:
        code: As `os.waitstatus_to_exitcode` has it: the exit status, or a signal's number below 0; None when unknown.
        oom: The kernel's OOM killer was at work where the process ran.
    """

    code: int | None
    oom: bool = False

    def fields(self) -> dict[str, int | str]:
        """What is known of it: ``status``, or ``signal`` by its name."""
        if self.code is None:
            return {}
        return {"status": self.code} if self.code >= 0 else {"signal": signal_name(-self.code)}


def verdict(bye: Bye | None, ended: Exit | None) -> tuple[str, str]:
    """A session's last state, and its cause in a word; the cause is empty when nothing needs to be said.

    What the training said stands, unless it `is_open`: then the exit has the last word.

    Args:
        bye: What the session said at its end; None when it said nothing.
        ended: The end of its process; None while it lives, and where it cannot be seen.
    """
    code = None if ended is None else ended.code
    if bye is not None and (code is None or not is_open(bye)):
        return (bye.status, bye.cause) if bye.status in ENDED else ("failed", bye.cause)
    if ended is None or code is None:
        return "lost", UNKNOWN
    if code >= 0:
        return ("failed", f"exit status {code}") if code else ("finished", "")
    if -code == signal.SIGKILL and ended.oom:
        return "failed", "OOM killed"
    return "stopped" if -code in _ASKED else "failed", signal_name(-code)


def is_open(bye: Bye) -> bool:
    """Whether the exit can change what was said: a good end that atexit tells, as ``sys.exit(3)`` reaches no excepthook."""
    return bye.provisional and bye.status == "finished"
