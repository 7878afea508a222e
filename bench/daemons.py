"""A daemon of its own for a measurement."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from processes import Daemon

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def fresh_daemon(*flags: str, **given: Any) -> Iterator[Daemon]:
    """Yield a daemon in an empty directory with a short path, for sockets; it ends after the block."""
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as place:
        daemon = Daemon(Path(place), *flags, fresh=True, **given)
        try:
            yield daemon
        finally:
            daemon.stop()
