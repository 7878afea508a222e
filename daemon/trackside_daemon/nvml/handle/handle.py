"""The parent's side of NVML: one worker process at a time, with a deadline, replaced with back-off when it fails."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from trackside_daemon.linux.worker_process import WorkerFailed, WorkerProcess
from trackside_daemon.nvml.backoff import Backoff
from trackside_daemon.nvml.handle.counter_continuity import Continued
from trackside_daemon.nvml.handle.known_gpus import Roster
from trackside_daemon.nvml.handle.lost_gpu_policy import Losses
from trackside_daemon.nvml.handle.quarantine import Avoided
from trackside_daemon.nvml.handle.worker_protocol import Dialogue
from trackside_daemon.nvml.reading import Order, Reading

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside_daemon.nvml.settings import NvmlSection

FAILED, ABSENT = (1.0, 60.0), (5.0, 60.0)
"""Seconds until the next worker, after the first failure and at most."""
SILENCE = 60.0
"""Seconds without a reading, whatever kept it away, after which NVML is down, and at least two intervals."""
UNBIND_PAUSE = 60.0
"""Seconds for which the device files are left alone when the driver is to let go of a GPU."""

REASONS = ("timeout", "crash", "exit", "library_mismatch", "gpu_lost", "gpu_unbind", "error", "pause")
"""Why workers are replaced. One that found no driver, no GPU, no pynvml or another daemon is not counted."""
_OURS = {"lib_rm_version_mismatch": "library_mismatch", "gpu_is_lost": "gpu_lost", "gpu_unbind": "gpu_unbind"}


class NvmlUnavailable(Exception):  # noqa: N818 - says what is so, as its subclass does
    """There is no reading now; the message is one line with the cause."""


class NvmlLocked(NvmlUnavailable):
    """The GPUs are left to another daemon; the message says to which."""


class NvmlDown(NvmlUnavailable):
    """NVML refused to begin, or has been silent for too long: no GPU is up as far as anybody can tell."""


class NvmlAbsent(NvmlDown):
    """This host has no NVIDIA driver or no GPU; the message says what would change that."""


class NvmlPaused(NvmlAbsent):
    """Nothing is read until `Nvml.resume`, so that the device files are free; the message says until when."""


class _Pause(NamedTuple):
    """Its end, by the handle's clock and in Unix seconds, and what to raise until then."""

    until: float
    unix: float
    text: str


class Nvml:
    """Readings of the worker, for one thread at a time. Nothing starts before the first.

    Each of those threads has to live as long as readings are wanted: see `trackside_daemon.linux.worker_process.Child`.

    `pause`, `resume` and all attributes are for any thread.

    Args:
        order: What the worker is to do.
        command: Started instead of our worker, by tests; this process's id is added to its arguments.
        clock: Seconds that deadlines and back-off are measured by.
        wall: Unix time, in seconds.

    Attributes:
        interval: Seconds between two calls of `read`, as the worker is told; it may be set while it runs.
        restarts: How many workers were ended or have ended, by `REASONS`.
        skipped: How many calls of `read` had no answer since the worker was busy with the request of one before.
        last: The last reading, also while there is none now; before the first, one of nothing.
    """

    def __init__(
        self,
        order: Order | None = None,
        command: list[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.interval = 1.0
        self.restarts = dict.fromkeys(REASONS, 0)
        self.skipped = 0
        self.last = Reading()
        self._command = command or _worker_command(order or Order())
        self._clock, self._wall = clock, wall
        self._lock = threading.Lock()
        self._child: WorkerProcess | None = None
        self._paused: _Pause | None = None
        self._dialogue: Dialogue | None = None
        self._trouble: tuple[type[NvmlUnavailable], str] = (NvmlUnavailable, "")
        self._retry_at = float("-inf")
        self._silent_since: float | None = None
        self._has_begun = False
        self._failed, self._absent = Backoff(*FAILED), Backoff(*ABSENT)
        self._avoided, self._losses, self._roster = Avoided(), Losses(), Roster()
        self._continued = Continued()

    @property
    def stuck(self) -> bool:
        """Whether a worker is not gone a second after SIGKILL: it hangs in the kernel, and no other is started."""
        child = self._child
        return child is not None and child.stuck

    @property
    def avoided(self) -> frozenset[int]:
        """Indexes of the GPUs that are not asked, since a worker hung there."""
        return self._avoided.at(self._clock())

    @property
    def paused_until(self) -> float | None:
        """The end of a pause in Unix seconds, infinite without one; None when there is no pause."""
        pause = self._paused
        return pause.unix if pause is not None and self._clock() < pause.until else None

    def read(self, patience: float) -> Reading:
        """All GPUs as they are now, waited for at most *patience* seconds.

        An answer that comes later is for the next call, where no newer one comes in time: see `Dialogue.reading`.

        Raises:
            NvmlPaused: `pause` was called, or the driver is to let go of a GPU.
            NvmlAbsent: There is nothing to read on this host.
            NvmlDown: NVML refuses or hangs.
            NvmlLocked: Another daemon reads the GPUs.
            NvmlUnavailable: The worker is late, or is being replaced, and the GPUs may be well.
        """
        with self._lock:
            try:
                return self._read(time.monotonic() + patience)
            except NvmlUnavailable as error:
                if type(error) is NvmlUnavailable and self._is_silent():
                    raise NvmlDown(str(error)) from error
                raise

    def pause(self, seconds: float | None = None) -> bool:
        """Ends the worker and starts none for so many seconds, or until `resume`; waits at most eight seconds.

        Returns:
            Whether the worker is gone and the device files are free; if not, it hangs in the kernel.
        """
        with self._lock:
            self._pause(seconds, "paused")
            self._end("pause")
            child = self._child
        return child is None or child.ended()

    def resume(self) -> None:
        """Ends a pause; the next `read` starts a worker, which asks every GPU."""
        with self._lock:
            self._paused = self._silent_since = None
            self._avoided, self._losses = Avoided(), Losses()

    def close(self) -> None:
        """Ends the worker, within four seconds. Call it when no thread reads any more."""
        if self._child is not None:
            self._child.close()
            self._child = self._dialogue = None

    def _read(self, until: float) -> Reading:
        dialogue = self._living_worker()
        try:
            answer = dialogue.reading(self.avoided, self.interval, until)
        except WorkerFailed as error:
            raise self._replace(f"the NVML worker failed: {error}", error.reason) from error
        except msgspec.MsgspecError as error:
            raise self._replace(f"the NVML worker failed: {error}", "error") from error
        if answer is None:
            raise self._late(dialogue)
        if answer.reading.error:
            raise self._refused(answer.reading)
        if not self._avoided.read(answer.reading.gpus, answer.avoided):
            return self._read(until)
        return self._good(answer.reading)

    def _living_worker(self) -> Dialogue:
        """The worker to ask; a new one only when the last is reaped, so that never two hang in one driver."""
        now = self._clock()
        if self._child is not None and self._child.ending and self._child.gone():
            self._child = self._dialogue = None
        if self._paused is not None:
            if now < self._paused.until:
                raise NvmlPaused(self._paused.text)
            self._paused = None
        kind, cause = self._trouble
        if self._child is not None and self._child.ending:
            last = ", which ignores even SIGKILL: it hangs in the kernel" if self._child.stuck else ""
            raise kind(f"{cause}; waiting for the worker, process {self._child.pid}, to end{last}")
        if self._dialogue is not None:
            return self._dialogue
        if now < self._retry_at:
            raise kind(cause)
        return self._start()

    def _start(self) -> Dialogue:
        try:
            self._child = WorkerProcess([*self._command, str(os.getpid())], self._clock)
        except OSError as error:
            raise self._replace(f"the NVML worker cannot be started: {error}", "") from error
        self._continued.replaced()
        self._losses.replaced()
        self._has_begun = False
        self._dialogue = Dialogue(self._child, self._clock)
        return self._dialogue

    def _good(self, reading: Reading) -> Reading:
        """The reading, as the daemon is to see it."""
        self._has_begun, self._silent_since = True, None
        self._failed.reset()
        self._absent.reset()
        if self._losses.cost(reading.gpus, self._clock()):
            self._end("gpu_lost")
            self._trouble = NvmlUnavailable, "a GPU is lost, and a new NVML worker looks for the others"
        self.last = self._continued.add(self._roster.call(reading))
        return self.last

    def _is_silent(self) -> bool:
        """Whether for too long, from the first call without a reading on."""
        now = self._clock()
        if self._silent_since is None:
            self._silent_since = now
        return now - self._silent_since > max(SILENCE, 2 * self.interval)

    def _late(self, dialogue: Dialogue) -> NvmlUnavailable:
        self.skipped += dialogue.is_old
        silent, waited = dialogue.silent, dialogue.waited
        if silent > dialogue.deadline:
            where = ""
            if dialogue.at is not None:
                self._avoided.hung(dialogue.at, self._clock())
                where = f" at GPU {dialogue.at}, which is left alone for a while,"
            cause = f"the NVML worker hung for {silent:.0f} s{where} and is replaced; look for Xid in dmesg"
        elif waited > dialogue.longest:
            cause = (
                f"the NVML worker read GPUs for {waited:.0f} s without an end and is replaced; look for Xid in dmesg"
            )
        else:
            deadline = f"it is replaced after {dialogue.deadline:.0f} s{'' if dialogue.at is None else ' at one GPU'}"
            return NvmlUnavailable(f"the NVML worker has not answered for {waited:.1f} s; {deadline}")
        return self._replace(cause, "timeout", kind=NvmlDown)

    def _refused(self, reading: Reading) -> NvmlUnavailable:
        """For a reading that is an error, after which its worker ends by itself."""
        if reading.reason == "locked":
            self._silent_since = None
            return self._replace(reading.error, "", self._absent, NvmlLocked)
        if reading.absent:
            return self._replace(reading.error, "", self._absent, NvmlAbsent)
        # One that has begun may have lost its footing, and not the driver: the next one says.
        kind = NvmlUnavailable if self._has_begun else NvmlDown
        error = self._replace(reading.error, _OURS.get(reading.reason, "error"), kind=kind)
        if reading.reason != "gpu_unbind":
            return error
        return NvmlPaused(self._pause(UNBIND_PAUSE, f"{reading.error}; paused").text)

    def _replace(
        self, cause: str, reason: str, backoff: Backoff | None = None, kind: type[NvmlUnavailable] = NvmlUnavailable
    ) -> NvmlUnavailable:
        """Ends the worker, says when the next may start, and returns what to raise until then."""
        self._end(reason)
        self._trouble = kind, cause
        self._retry_at = self._clock() + (backoff or self._failed).wait()
        return kind(cause)

    def _end(self, reason: str) -> None:
        if self._child is not None and not self._child.ending:
            self._child.end()
            if reason:
                self.restarts[reason] += 1

    def _pause(self, seconds: float | None, why: str) -> _Pause:
        length = math.inf if seconds is None else seconds
        unix = self._wall() + length
        until = "" if length == math.inf else f" until {datetime.fromtimestamp(unix).astimezone():%H:%M:%S}"
        text = f"{why}{until}; trackside resume-gpu goes on at once"
        self._paused = _Pause(self._clock() + length, unix, text)
        self._trouble, self._retry_at = (NvmlUnavailable, "the pause is over"), float("-inf")
        self._silent_since = None
        self._avoided, self._losses, self._roster = Avoided(), Losses(), Roster()
        return self._paused


def _worker_command(order: Order) -> list[str]:
    # -m would put the working directory, full of a user's files, before the standard library.
    safe_path = ["-P"] if sys.version_info >= (3, 11) else []
    return [sys.executable, *safe_path, "-m", "trackside_daemon.nvml.worker", msgspec.json.encode(order).decode()]


def order(gpu: NvmlSection) -> Order:
    """Return the order of a worker by the settings."""
    return Order(gpu.extra, gpu.skip, gpu.simulate, gpu.profile, gpu.trouble)
