"""The time limit of a run's end: it waits so long until the daemon has what was pushed."""

import os

FLUSH_SECONDS = 365 * 86400.0  # longest flush timeout, for `inf`: a part of it must be left for the senders


def flush_timeout() -> float:
    """Return the seconds that the end of a run may take: ``$TRACKSIDE_FLUSH_TIMEOUT``, default 2."""
    try:
        return min(max(0.0, float(os.environ.get("TRACKSIDE_FLUSH_TIMEOUT", "2"))), FLUSH_SECONDS)
    except ValueError:
        return 2.0
