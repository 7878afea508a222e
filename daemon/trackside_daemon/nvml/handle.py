"""The parent's side of NVML: one worker process at a time, with a deadline, replaced with back-off when it fails."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import msgspec

from trackside_daemon.nvml.child import Child, ChildFailed
from trackside_daemon.nvml.reading import Order, Reading

if TYPE_CHECKING:
    from collections.abc import Callable

INIT_DEADLINE = 60.0
"""Seconds for a worker's first answer: without persistence mode nvmlInit wakes every GPU up."""
CYCLE_DEADLINE = 10.0
BACKOFF_FIRST, BACKOFF_LAST = 1.0, 60.0

_decode = msgspec.json.Decoder(Reading).decode


class NvmlUnavailable(Exception):  # noqa: N818 - says what is so, as its subclass does
    """There is no reading now; the message is one line with the cause."""


class NvmlAbsent(NvmlUnavailable):
    """This host has no NVIDIA driver or no GPU; the message says what would change that."""


class Nvml:
    """Readings of the worker, for one thread that lives as long as they are wanted. Nothing starts before the first.

    Args:
        order: What the worker is to do.
        command: Started instead of our worker, by tests.
        clock: Seconds that deadlines and back-off are measured by.
    """

    def __init__(
        self, order: Order | None = None, command: list[str] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._command = command or _worker_command(order or Order())
        self._clock = clock
        self._child: Child | None = None
        self._calls = 0
        self._outstanding = False
        self._asked_in, self._asked_at = 0, 0.0
        self._deadline = INIT_DEADLINE
        self._trouble: tuple[type[NvmlUnavailable], str] = (NvmlUnavailable, "")
        self._retry_at = float("-inf")
        self._backoff = BACKOFF_FIRST

    def read(self, patience: float) -> Reading:
        """All GPUs as they are now, waited for at most *patience* seconds.

        An answer that comes later is taken by the next call; after that it is too old and asked for again.

        Raises:
            NvmlAbsent: There is nothing to read on this host.
            NvmlUnavailable: The worker is late, or failed and is being replaced.
        """
        self._calls += 1
        until = time.monotonic() + patience
        child = self._living_child()
        try:
            reading = self._fresh_answer(child, until)
        except (ChildFailed, msgspec.MsgspecError) as error:
            raise self._replace(NvmlUnavailable, f"the NVML worker failed: {error}") from error
        if reading is None:
            raise self._late()
        if reading.error:
            raise self._replace(NvmlAbsent if reading.absent else NvmlUnavailable, reading.error)
        self._backoff = BACKOFF_FIRST
        return reading

    def close(self) -> None:
        """Ends the worker, within four seconds. Call it when no thread reads any more."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def _living_child(self) -> Child:
        """The worker to ask; a new one only when the last is reaped, so that never two hang in one driver."""
        now = self._clock()
        kind, cause = self._trouble
        if self._child is not None and self._child.ending:
            if not self._child.gone(now):
                raise kind(f"{cause}; waiting for the worker, process {self._child.pid}, to end")
            self._child = None
        if self._child is not None:
            return self._child
        if now < self._retry_at:
            raise kind(cause)
        try:
            self._child = Child(self._command)
        except OSError as error:
            raise self._replace(NvmlUnavailable, f"the NVML worker cannot be started: {error}") from error
        self._outstanding, self._deadline = False, INIT_DEADLINE
        return self._child

    def _fresh_answer(self, child: Child, until: float) -> Reading | None:
        while True:
            if not self._outstanding:
                child.ask(b"[]")
                self._outstanding, self._asked_in, self._asked_at = True, self._calls, self._clock()
            line = child.answer(until)
            if line is None:
                return None
            if line.isdigit():
                continue
            self._outstanding, self._deadline = False, CYCLE_DEADLINE
            reading = _decode(line)
            if reading.error or self._calls - self._asked_in <= 1:
                return reading

    def _late(self) -> NvmlUnavailable:
        waited = self._clock() - self._asked_at
        if waited <= self._deadline:
            return NvmlUnavailable(
                f"the NVML worker has not answered for {waited:.1f} s; it is replaced after {self._deadline:.0f} s"
            )
        hung = f"the NVML worker hung for {waited:.0f} s and is replaced; look for Xid in dmesg"
        return self._replace(NvmlUnavailable, hung)

    def _replace(self, kind: type[NvmlUnavailable], cause: str) -> NvmlUnavailable:
        """Ends the worker, says when the next may start, and returns what to raise until then."""
        now = self._clock()
        if self._child is not None:
            self._child.end(now)
        self._trouble = kind, cause
        self._retry_at = now + self._backoff
        self._backoff = min(2 * self._backoff, BACKOFF_LAST)
        return kind(cause)


def _worker_command(order: Order) -> list[str]:
    # -m would put the working directory, full of a user's files, before the standard library.
    safe_path = ["-P"] if sys.version_info >= (3, 11) else []
    return [sys.executable, *safe_path, "-m", "trackside_daemon.nvml.worker", msgspec.json.encode(order).decode()]
