"""How many files this process may open: each connection of a client, each worker that is followed, each count is one."""

from __future__ import annotations

import resource
from contextlib import suppress

MOST = 65_536
"""Not all that a hard limit allows, which may be thousands of millions: some libraries go through all numbers."""


def raise_limit() -> None:
    """Raise the soft limit (RLIMIT_NOFILE) to the hard one, but no higher than `MOST`; never lower it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):  # some containers do not let it be changed
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
