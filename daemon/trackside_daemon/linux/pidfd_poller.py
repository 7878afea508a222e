"""Report the ends of processes in their order, from their pidfds."""

from __future__ import annotations

import os
import select


class PidfdPoller:
    """A set of pidfds, each of which is reported once, when its process ends.

    On systems without pidfds it stays empty: `supported` is False, and `fileno` never becomes readable.
    """

    def __init__(self) -> None:
        self.supported = hasattr(select, "epoll") and hasattr(os, "pidfd_open")
        self._pipe: tuple[int, int] | None = None
        if self.supported:
            self._epoll = select.epoll()
        else:
            # Nothing ever writes to it.
            self._pipe = os.pipe()

    def fileno(self) -> int:
        """Return a descriptor that is readable while an end is unreported."""
        return self._epoll.fileno() if self._pipe is None else self._pipe[0]

    def register(self, pidfd: int) -> None:
        """Add a pidfd.

        Raises:
            OSError: It would exceed this user's limit of epoll watches, or pidfds are not supported.
        """
        if self._pipe is not None:
            raise OSError("this system has no pidfds")
        # The pidfd of an ended process stays readable: without EPOLLONESHOT each poll would report it again.
        self._epoll.register(pidfd, select.EPOLLIN | select.EPOLLONESHOT)

    def unregister(self, pidfd: int) -> None:
        """Remove a pidfd."""
        self._epoll.unregister(pidfd)

    def ended(self) -> list[int]:
        """Return the pidfds of processes that ended since the last call, in the order of their ends."""
        # epoll lists descriptors in the order in which they became ready.
        return [] if self._pipe is not None else [pidfd for pidfd, _ in self._epoll.poll(0)]

    def close(self) -> None:
        """Close the poller, but not its pidfds."""
        if self._pipe is None:
            self._epoll.close()
        else:
            for end in self._pipe:
                os.close(end)
