"""`trackside daemon` for several commands: ``python -m trackside_daemon.cli.run.shared_daemon LOCK FLAG…``.

It runs with these flags as long as LOCK, a `DaemonLease`, has users.
"""

import os
import signal
import sys
import threading
from pathlib import Path

from trackside_daemon.cli.main import app
from trackside_daemon.cli.run.daemon_lease import DaemonLease
from trackside_daemon.linux.signals import block_signals


def main() -> None:
    """Run the daemon until its last user is gone."""
    lock, *flags = sys.argv[1:]
    block_signals()  # before the thread, to which the kernel could deliver a signal
    lease = DaemonLease(Path(lock))
    threading.Thread(target=_end_unused, args=(lease,), name="trackside-lease", daemon=True).start()
    app(["daemon", *flags], prog_name="trackside")


def _end_unused(lease: DaemonLease) -> None:
    lease.wait_until_unused()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
