"""Room on file systems that may hang, asked by child processes: what hangs there hangs no one else.

One child asks them all, one after another. When a file system does not answer in time, that child is left to it and
another goes on with the others; so no more than one hangs in each, and no answer of one is late because of another. What
ails a child itself says nothing of a file system: then there is no answer.
"""

from __future__ import annotations

import errno
import os
import time
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.collectors.host.filesystem.remote_children import RETRY, RETRY_AT_MOST, Children
from trackside_daemon.linux.worker_process import WorkerFailed, WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trackside_daemon.collectors.host.filesystem.mount_table import Mount

PATIENCE = 0.05
"""Seconds that a tick waits for all answers; later ones are for the next tick."""
DEADLINE = 5.0
"""Seconds without an answer after which a file system is stuck; from then on it is asked again after `RETRY`, and then ever more seldom."""

Key = tuple[int, str, str]
"""A mount's."""


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
    """A file system's standing: what it said last, who asks it now and since when, and when it may be asked again."""

    def __init__(self) -> None:
        self.last: Answer | None = None
        self.child: WorkerProcess | None = None
        self.since = 0.0
        self.stuck = self.hung = self.late = False
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
        self._children = Children(command, clock)
        self._clock, self._patience = clock, patience
        self._asked: dict[Key, _Asked] = {}

    def rooms(self, mounts: Sequence[Mount], prefix: str = "") -> dict[Key, Answer]:
        """What each says now, or has said `DEADLINE` ago at most when the answer is not there yet, by the mount's key.

        One that has not answered, and is not stuck, is left out.

        Args:
            mounts: All that are wanted; what is known of others is forgotten.
            prefix: Stands before their mount points.
        """
        until = time.monotonic() + self._patience
        self._forget({mount.key for mount in mounts})
        self._children.begin()
        every = [(mount, self._asked.setdefault(mount.key, _Asked())) for mount in mounts]
        for mount, one in sorted(every, key=lambda pair: pair[1].late):  # who is quick does not wait for who is not
            self._attend(one, os.fsencode(prefix + mount.point), until)
        self._children.trim(1 if mounts else 0)
        return {mount.key: one.last for mount, one in every if one.last is not None and self._holds(one)}

    def hasten(self) -> None:
        """What is mounted has changed, perhaps to cure one: none is put off for longer than `RETRY`."""
        for one in self._asked.values():
            one.retry, one.retry_at = RETRY, min(one.retry_at, one.since + RETRY)

    def close(self) -> None:
        """Ends the children, or leaves them to the kernel, within half a second. Call it when no thread asks."""
        self._children.close([one.child for one in self._asked.values() if one.child is not None])
        self._asked = {}

    def _holds(self, one: _Asked) -> bool:
        return isinstance(one.last, TimeoutError) or self._clock() - one.since <= DEADLINE

    def _forget(self, wanted: set[Key]) -> None:
        """All but the file systems that are wanted, and those in which a child still hangs."""
        for key in self._asked.keys() - wanted:
            one = self._asked[key]
            if one.child is not None and not one.stuck:
                one.child.kill()
                one.last, one.stuck = None, True
            if one.child is None or one.child.gone():
                del self._asked[key]

    def _attend(self, one: _Asked, path: bytes, until: float) -> None:
        """Takes its answer, and asks it again."""
        if one.child is not None:
            self._take(one, one.child, 0.0)
        if one.child is None and self._clock() >= one.retry_at and (child := self._children.free(until)) is not None:
            one.child, one.since = child, self._clock()
            try:
                child.ask(path.hex().encode())
            except (OSError, WorkerFailed) as error:
                self._failed(one, child, error)
                return
            self._take(one, child, until)
            one.late = one.child is not None

    def _take(self, one: _Asked, child: WorkerProcess, until: float) -> None:
        """Its answer, when it comes until then; what is to follow when it does not."""
        if one.stuck:
            self._await_end(one, child)
            return
        try:
            line = child.answer(until)
            answer = _decode(line) if line is not None else None
        except (WorkerFailed, ValueError, TypeError) as error:
            self._failed(one, child, error)
            return
        if answer is not None:
            one.last, one.child, one.retry = answer, None, RETRY
            self._children.give_back(child)
        elif self._clock() - one.since > DEADLINE:
            child.kill()
            one.last, one.stuck = TimeoutError(errno.ETIMEDOUT, f"no answer for {DEADLINE:.0f} s"), True
            self._put_off(one)

    def _await_end(self, one: _Asked, child: WorkerProcess) -> None:
        """One that hung for long after SIGKILL hung in the kernel: its end is the file system's first sign of life."""
        one.hung = one.hung or child.stuck
        if child.gone():
            if one.hung:
                one.retry_at = self._clock()
            one.child, one.stuck, one.hung = None, False, False

    def _failed(self, one: _Asked, child: WorkerProcess, error: Exception) -> None:
        one.child = one.last = None
        self._children.failed(child, error)
        self._put_off(one)

    def _put_off(self, one: _Asked) -> None:
        one.retry_at = self._clock() + one.retry
        one.retry = min(2 * one.retry, RETRY_AT_MOST)


def _decode(line: bytes) -> Answer:
    numbers = [int(word) for word in line.split()]
    if len(numbers) == 1:
        return OSError(numbers[0], os.strerror(numbers[0]))
    return Room(*numbers)
