"""``python -m trackside_daemon.cli.shared_daemon_main LOCK FLAG…``: `trackside daemon` with these flags, as long as LOCK has users."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from trackside_daemon.cli.daemon_lease import Users
from trackside_daemon.cli.main import app
from trackside_daemon.linux.signals import block_signals


def main() -> None:
    """Run it."""
    lock, *flags = sys.argv[1:]
    block_signals()  # before there is a thread that a signal could end without a word
    threading.Thread(target=_end_unused, args=(Users(Path(lock)),), name="trackside-users", daemon=True).start()
    app(["daemon", *flags], prog_name="trackside")


def _end_unused(users: Users) -> None:
    users.wait()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
