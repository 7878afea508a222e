"""Status and cause of a run's end, and the text and the traceback of the exception that ends it."""

import os
import re
import sys
import threading
from collections.abc import Callable
from functools import wraps
from time import monotonic_ns
from traceback import TracebackException
from types import TracebackType
from typing import Literal, get_args

from trackside.packing import text_of, writable
from trackside.patterns import pattern
from trackside.training_log import warn
from trackside.wire import CLOSED

Status = Literal["finished", "stopped", "failed"]
STATUSES: tuple[Status, ...] = get_args(Status)

SHM = "/dev/shm"  # noqa: S108  only its size is read

# Words of PyTorch's messages if /dev/shm is full: a tensor gets no room, or SIGBUS kills a loader's worker.
_FULL = (("shared memory", "No space left on device"), ("DataLoader worker", "Bus error"))
# Some releases of PyTorch 2 write "capacty".
_GPU = pattern(
    r"out of memory\. Tried to allocate (?P<requested>[\d.]+ \w+)\. (?:GPU (?P<gpu>\d+) has a total capaci?ty of "
    r"(?P<total>[\d.]+ \w+) of which (?P<free>[\d.]+ \w+) is free)?"
)
# A call of a collective, as PyTorch with $TORCH_DISTRIBUTED_DEBUG=DETAIL writes it if other ranks made another one.
_CALL = pattern(
    r"Rank (\d+) is running collective: CollectiveFingerPrint\(SequenceNumber=\d+,? ?OpType=(\w+)(?:, TensorShape=(\[[\d, ]*\]))?"
)
newest_call: Callable[[], str] = str
"""Returns the newest collective of this process in words, or nothing: that of `captures.flight_recorder`, which is above this."""
_TEXT = 65536
_LINE = 200


def checked_status(status: object) -> Status:
    """Return a status; for anything else ``stopped``, with a warning: the end of a training must not raise."""
    known = next((known for known in STATUSES if isinstance(status, str) and status == known), None)
    if known is not None:
        return known
    warn(f"finish: status {text_of(status)[:60]!r} is none of {', '.join(STATUSES)}; stopped is used")
    return "stopped"


def outcome(kind: type[BaseException] | None, error: BaseException | None) -> tuple[str, str]:
    """Return the status and the cause that follow from an exception, or from none."""
    if kind is None:
        return "finished", ""
    if isinstance(error, SystemExit):
        cause = _exit_cause(error)
        return ("failed", cause) if cause else ("finished", "")
    cause = ": ".join(filter(None, (kind.__name__, known_reason(error) or _first_line(error))))
    return ("stopped" if issubclass(kind, KeyboardInterrupt) else "failed"), cause


_requested = 0, ""  # when the main thread last called `sys.exit`, in monotonic nanoseconds, and the cause that follows


def watch_exit_calls() -> None:
    """Note what `sys.exit` is called with: no function that runs at the exit of a process can find it out."""
    original = sys.exit
    if getattr(original, "trackside", False):
        return

    @wraps(original)
    def exit_(status: object = None, /) -> None:
        global _requested  # noqa: PLW0603
        if threading.get_ident() == threading.main_thread().ident:  # in another one it ends the thread
            _requested = monotonic_ns(), _exit_cause(SystemExit(status))
        original(status)  # type: ignore[arg-type]

    exit_.trackside = True  # type: ignore[attr-defined]
    sys.exit = exit_  # type: ignore[assignment]


def requested_exit(since: int | None) -> str:
    """Return the cause that follows from the last call of `sys.exit`; empty for none, for 0, and for one before *since*.

    Args:
        since: Monotonic nanoseconds of the last push, which shows that an earlier call did not end the process.
    """
    moment, cause = _requested
    return cause if since is None or moment >= since else ""


def _exit_cause(error: SystemExit) -> str:
    """Return ``exit status 3``, or ``exit status 1: TEXT``; empty for 0."""
    code = error.code
    if code is None or isinstance(code, int):
        return f"exit status {code & 0xFF}" if code and code & 0xFF else ""
    return ": ".join(filter(None, ("exit status 1", _first_line(error))))


def _first_line(error: BaseException | None) -> str:
    """Return the first line of an exception's text without secrets; empty if it has none."""
    try:
        from trackside.redact import redact_text

        return redact_text(writable(next(iter(str(error or "")[:_TEXT].splitlines()), "")))[:_LINE].strip()
    except Exception:  # noqa: BLE001  the text of a user's exception is the user's code
        return ""


def known_reason(error: BaseException | None, shm: str = SHM) -> str:
    """Return that /dev/shm, a GPU, collectives or another rank caused an exception, by PyTorch's text; else empty."""
    try:
        text = str(error)[:_TEXT]
        if match := _GPU.search(text):
            return _gpu_shortage(match)
        if "Detected mismatch between collectives" in text:
            calls = sorted(_CALL.findall(text), key=lambda call: int(call[0]))
            named = (f"rank {rank} called {name}{shape and f' with {shape}'}" for rank, name, shape in calls)
            return "the ranks' collectives differ: " + " and ".join(named)
        if "gloo" in text and "by peer" in text and (call := newest_call()):
            return f"{CLOSED}{call}"
        if not any(all(word in text for word in words) for words in _FULL):
            return ""
        status = os.statvfs(shm)
    except Exception:  # noqa: BLE001  the text of a user's exception is the user's code
        return ""
    return f"{shm} is full (size {status.f_blocks * status.f_frsize / 2**20:.4g} MiB)"


def _gpu_shortage(match: re.Match[str]) -> str:
    if not match["gpu"]:
        return f"a GPU is out of memory: {match['requested']} requested"
    requested = f"GPU {match['gpu']} is out of memory: {match['requested']} requested"
    return f"{requested}, {match['free']} of {match['total']} free"


TEXT = 4096  # limit of characters of an exception's text
TRACEBACK = 16_384  # limit of characters of a traceback; the innermost calls stay
FRAMES = 64  # innermost calls of each exception of a chain
_SCANNED = 65_536  # limit of what is searched for secrets


def exception_fields(error: BaseException | None, traceback: TracebackType | None = None) -> dict[str, str]:
    """Return type, text and traceback of an exception, without secrets; empty for none, and for a requested end.

    The exception itself is not kept: its frames hold tensors.

    Args:
        error: The exception.
        traceback: Its traceback; None for its own.
    """
    if error is None or isinstance(error, SystemExit | KeyboardInterrupt | GeneratorExit):
        return {}
    try:
        from trackside.redact import redact_text

        calls = traceback or error.__traceback__
        lines = TracebackException(type(error), error, calls, limit=-FRAMES, compact=True).format()
        whole = redact_text(writable("".join(lines)[-_SCANNED:]))
        text = redact_text(writable(str(error)[:_SCANNED]))
        return {"type": type(error).__name__, "text": text[:TEXT], "traceback": whole[-TRACEBACK:]}
    except Exception:  # noqa: BLE001  the text of a user's exception is the user's code
        return {"type": type(error).__name__, "text": "", "traceback": ""}
