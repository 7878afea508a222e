"""The limit of open files: client connections, followed workers and open counters need one descriptor each."""

from __future__ import annotations

import resource
from contextlib import suppress

# A hard limit may allow thousands of millions, and some libraries iterate over all descriptor numbers.
MOST = 65_536  # upper bound of the limit that `raise_limit` sets


def raise_limit() -> None:
    """Raise the soft limit (RLIMIT_NOFILE) to the hard one, but no higher than `MOST`; never lower it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):  # some containers forbid the change
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
