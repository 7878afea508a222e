"""How a run ends: with which status, and within which time."""

from __future__ import annotations

import os

from trackside.totals.resources import shortage

STATUSES = ("finished", "stopped", "failed")

FLUSH_SECONDS = 365 * 86400.0
"""The longest wait, which ``inf`` means: of infinity no part can be left for others."""


def outcome(kind: type[BaseException] | None, error: BaseException | None) -> tuple[str, str]:
    """The status and the cause that follow from an exception, or from none."""
    if kind is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return "finished", ""
    cause = ": ".join(filter(None, (kind.__name__, shortage(error))))
    return ("stopped" if issubclass(kind, KeyboardInterrupt) else "failed"), cause


def flush_timeout() -> float:
    """Seconds that the end of a run may take: ``$TRACKSIDE_FLUSH_TIMEOUT``."""
    try:
        return min(max(0.0, float(os.environ.get("TRACKSIDE_FLUSH_TIMEOUT", "2"))), FLUSH_SECONDS)
    except ValueError:
        return 2.0
