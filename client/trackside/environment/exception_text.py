"""The text and the traceback of the exception that ends a run."""

from __future__ import annotations

from traceback import TracebackException
from typing import TYPE_CHECKING

from trackside.packing import writable

if TYPE_CHECKING:
    from types import TracebackType

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
