"""Lock of a daemon that several commands share: they hold it together, and the daemon ends when it gets the lock alone.

The daemon therefore also serves commands that start later, and it ends with the last one, even if that is killed: the
kernel releases a lock when its process ends.
"""

import fcntl
import os
import signal
import sys
import threading
import time
from pathlib import Path

from trackside_daemon.linux.signals import block_signals

POLL_SECONDS = 0.05
HANDOVER_SECONDS = 0.2  # time for the daemon to get the lock that the last command has released


class DaemonLease:
    """The lock of the daemon of one push socket.

    Args:
        path: A file next to the push socket; it is never deleted.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def acquire(self, timeout: float) -> bool:
        """Become a user, and wait *timeout* seconds for a daemon that is ending; return whether it worked."""
        until = time.monotonic() + timeout
        while not self._acquired():
            if time.monotonic() >= until:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def begin_start(self) -> bool:
        """Become the only command that searches for the daemon and starts it, until `end_start`; return whether it worked."""
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # independent of the lock of flock(2)
        except (BlockingIOError, PermissionError):  # POSIX permits both errors for a lock that is taken
            return False
        return True

    def end_start(self) -> None:
        """Let another command search for the daemon."""
        fcntl.lockf(self._file, fcntl.LOCK_UN)

    def release(self, timeout: float) -> None:
        """Stop being a user, and wait *timeout* seconds for a daemon that ends as a result."""
        fcntl.flock(self._file, fcntl.LOCK_UN)
        time.sleep(HANDOVER_SECONDS)
        # Waits only if the daemon got the lock alone, and then until it has ended.
        self.acquire(timeout)
        os.close(self._file)

    def wait_until_unused(self) -> None:
        """Return when there is no user left, and keep new ones out."""
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def _acquired(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def main() -> None:
    """Run `trackside daemon` with flags until its last user is gone: ``python -m trackside_daemon.cli.run.daemon_lease LOCK FLAG…``."""
    from trackside_daemon.cli.main import app

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
