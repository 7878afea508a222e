"""Room on file systems that may hang, asked by child processes: what hangs there hangs no one else.

One child asks them all, one after another. When a file system does not answer in time, that child is left to it and
another goes on with the others; so no more than one hangs in each, and no answer of one is late because of another.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.child import Child, ChildFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trackside_daemon.collectors.mounts import Mount

PATIENCE = 0.05
"""Seconds that a tick waits for all answers; later ones are for the next tick."""
DEADLINE = 5.0
"""Seconds without an answer after which a file system is stuck."""
RETRY, RETRY_AT_MOST = 30.0, 300.0
"""Seconds from then until it is asked again, doubling."""
END = 0.5
"""Seconds that the end of the children is waited for."""


class Room(NamedTuple):
    """What statvfs(3) tells.

    Attributes:
        unit: Bytes in a block.
        blocks: Of them there are, *free* are unused, and *avail* are so for everybody.
        files: Inodes that there are, and *files_free* unused ones.
    """

    unit: int
    blocks: int
    free: int
    avail: int
    files: int
    files_free: int


Answer = Room | OSError
"""`TimeoutError` when it is stuck."""


class _Asked:
    """A file system's standing: what it said last, who asks it now, and when it may be asked again."""

    def __init__(self) -> None:
        self.last: Answer | None = None
        self.child: Child | None = None
        self.since = 0.0
        self.stuck = self.hung = False
        self.retry_at, self.retry = float("-inf"), RETRY


class Remote:
    """For one thread that lives as long as it is wanted; nothing is started before there is something to ask.

    Args:
        command: Started instead of our worker, by tests; this process's id is added to its arguments.
        clock: Seconds that the deadline and the back-off are measured by.
        patience: Seconds that `rooms` waits at most.
    """

    def __init__(
        self,
        command: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
        patience: float = PATIENCE,
    ) -> None:
        # -I keeps the working directory and the user's variables out, -S the site: neither is needed.
        self._command = [*(command or (sys.executable, "-I", "-S", str(Path(__file__).with_name("remote_worker.py"))))]
        self._clock, self._patience = clock, patience
        self._asked: dict[int, _Asked] = {}
        self._idle: list[Child] = []
        self._ending: list[Child] = []

    def rooms(self, mounts: Sequence[Mount], prefix: str = "") -> dict[int, Answer]:
        """What each says now, or has said when the answer is not there yet, by the mount's number.

        One that has not answered yet, and is not stuck, is left out.

        Args:
            mounts: All that are wanted; what is known of others is forgotten.
            prefix: Stands before their mount points.
        """
        until = time.monotonic() + self._patience
        wanted = {mount.number for mount in mounts}
        self._forget(wanted)
        self._ending = [child for child in self._ending if not child.gone()]
        for mount in mounts:
            one = self._asked.setdefault(mount.number, _Asked())
            if one.child is not None:
                self._take(one, 0.0)
            if one.child is None and self._clock() >= one.retry_at:
                self._ask(one, os.fsencode(prefix + mount.point))
                self._take(one, until)
        return {number: one.last for number, one in self._asked.items() if one.last is not None and number in wanted}

    def close(self) -> None:
        """Kills the children, and leaves to the kernel what has not ended after `END`. Call it when no thread asks."""
        asking = [one.child for one in self._asked.values() if one.child is not None]
        children = [*self._idle, *asking, *self._ending]
        for child in children:
            child.kill()
        until = time.monotonic() + END
        for child in children:
            child.leave(until)
        self._asked, self._idle, self._ending = {}, [], []

    def _forget(self, wanted: set[int]) -> None:
        """All but the file systems that are wanted, and those in which a child still hangs."""
        for number in self._asked.keys() - wanted:
            one = self._asked[number]
            if one.child is not None and not one.stuck:
                one.child.kill()
                one.last, one.stuck = None, True
            if one.child is None or one.child.gone():
                del self._asked[number]

    def _ask(self, one: _Asked, path: bytes) -> None:
        self._idle = [child for child in self._idle if not child.gone()]
        try:
            one.child = self._idle.pop() if self._idle else Child([*self._command, str(os.getpid())], self._clock)
            one.child.ask(path.hex().encode())
        except (OSError, ChildFailed) as error:
            self._failed(one, error)
        one.since = self._clock()

    def _take(self, one: _Asked, until: float) -> None:
        """Its answer, when it comes until then; what is to follow when it does not."""
        child = one.child
        if child is None:
            return
        if one.stuck:
            self._await_end(one, child)
            return
        try:
            line = child.answer(until)
            answer = _decode(line) if line is not None else None
        except (ChildFailed, ValueError, TypeError) as error:
            self._failed(one, error)
            return
        if answer is not None:
            one.last, one.child, one.retry = answer, None, RETRY
            self._idle.append(child)
        elif self._clock() - one.since > DEADLINE:
            child.kill()
            one.last, one.stuck = TimeoutError(errno.ETIMEDOUT, f"no answer for {DEADLINE:.0f} s"), True
            self._put_off(one)

    def _await_end(self, one: _Asked, child: Child) -> None:
        """One that hung for long after SIGKILL hung in the kernel: its end is the file system's first sign of life."""
        one.hung = one.hung or child.stuck
        if child.gone():
            if one.hung:
                one.retry_at = self._clock()
            one.child, one.stuck, one.hung = None, False, False

    def _failed(self, one: _Asked, error: Exception) -> None:
        if one.child is not None:
            one.child.kill()
            self._ending.append(one.child)
        one.child, one.last = None, OSError(errno.EIO, f"the process that asks it failed: {error}")
        self._put_off(one)

    def _put_off(self, one: _Asked) -> None:
        one.retry_at = self._clock() + one.retry
        one.retry = min(2 * one.retry, RETRY_AT_MOST)


def _decode(line: bytes) -> Answer:
    numbers = [int(word) for word in line.split()]
    if len(numbers) == 1:
        return OSError(numbers[0], os.strerror(numbers[0]))
    return Room(*numbers)
