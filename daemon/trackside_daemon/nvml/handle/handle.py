"""Daemon's side of NVML: one worker process at a time, with deadlines, replaced with back-off when it fails."""

from __future__ import annotations

import math
import os
import threading
import time
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from trackside_daemon.linux.child_process import own_module
from trackside_daemon.linux.worker_process import WorkerFailed, WorkerProcess
from trackside_daemon.model.backoff import Backoff
from trackside_daemon.nvml.handle.counter_continuity import CounterContinuity
from trackside_daemon.nvml.handle.worker_protocol import SILENCE_SECONDS, Quarantine, WorkerClient
from trackside_daemon.nvml.reading import DOWN, GpuReading, Reading, WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from trackside_daemon.nvml.settings import NvmlSection

# Seconds after the first loss of a GPU in which further losses of it replace no worker; doubled with each.
FIRST_TOLERANCE = 60.0

# Maximum of these seconds; after a longer time without a loss the GPU starts again at the first.
MAX_TOLERANCE = 600.0

# Seconds until the next worker, after the first failure and at most.
FAILURE_BACKOFF = (1.0, 60.0)
ABSENCE_BACKOFF = (5.0, 60.0)
UNBIND_PAUSE = 60.0  # seconds without access to the device files after a request to unbind the driver

# Reasons to replace a worker. A worker without a driver, a GPU, pynvml or the lock is not counted.
REASONS = ("timeout", "crash", "exit", "library_mismatch", "gpu_lost", "gpu_unbind", "error", "pause")
_REASON_BY_RESULT = {
    "lib_rm_version_mismatch": "library_mismatch",
    "gpu_is_lost": "gpu_lost",
    "gpu_unbind": "gpu_unbind",
}


class NvmlUnavailable(Exception):  # noqa: N818 - a state, as in its subclasses
    """There is no reading now; the message is one line with the cause."""


class NvmlLate(NvmlUnavailable):
    """The worker has not answered yet, and is not overdue."""


class NvmlLocked(NvmlUnavailable):
    """Another daemon reads the GPUs; the message names it."""


class NvmlDown(NvmlUnavailable):
    """NVML failed to initialise, or has been silent for too long: all GPUs count as down."""


class NvmlAbsent(NvmlDown):
    """This host has no NVIDIA driver or no GPU; the message states the remedy."""


class NvmlPaused(NvmlAbsent):
    """Reading is paused until `Nvml.resume`, so that the device files are free; the message states until when."""


class _Pause(NamedTuple):
    """End of a pause, by the handle's clock and in Unix seconds, and the message to raise until then."""

    until: float
    unix: float
    text: str


class Nvml:
    """Handle of the NVML worker, for one thread at a time; the first `read` starts the worker.

    The kernel ends the worker with the thread that started it, so that thread must live as long as readings are wanted:
    see `trackside_daemon.linux.worker_process.WorkerProcess`. Any thread may use `pause`, `resume` and all attributes.

    Args:
        settings: Settings of the worker.
        command: Command to start instead of our worker, for tests; this process's id is appended to its arguments.
        clock: Clock of deadlines and back-off, in seconds.
        wall: Unix time, in seconds.

    Attributes:
        interval: Seconds between two calls of `read`, passed on to the worker; may change at run time.
        restarts: Number of workers that ended, by `REASONS`.
        skipped: Number of calls of `read` without a reading because the worker was busy with an earlier request.
        last: The last reading, even if there is none now; empty before the first.
    """

    def __init__(
        self,
        settings: WorkerSettings | None = None,
        command: list[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.interval = 1.0
        self.restarts = dict.fromkeys(REASONS, 0)
        self.skipped = 0
        self.last = Reading()
        self._command = command or worker_command(settings or WorkerSettings())
        self._clock = clock
        self._wall = wall
        self._lock = threading.Lock()
        self._child: WorkerProcess | None = None
        self._client: WorkerClient | None = None
        self._active_pause: _Pause | None = None
        self._problem: tuple[type[NvmlUnavailable], str] = (NvmlUnavailable, "")
        self._retry_at = -math.inf
        self._silent_since: float | None = None
        self._has_answered = False
        self._failure_backoff = Backoff(*FAILURE_BACKOFF)
        self._absence_backoff = Backoff(*ABSENCE_BACKOFF)
        self._quarantine = Quarantine()
        self._lost_gpus = LostGpuPolicy()
        self._known_gpus = KnownGpus()
        self._counters = CounterContinuity()

    @property
    def worker(self) -> WorkerProcess | None:
        """The worker process; None while there is none."""
        return self._child

    @property
    def stuck(self) -> bool:
        """True if a worker is still there a second after SIGKILL: it hangs in the kernel, so no other is started."""
        child = self._child
        return child is not None and child.stuck

    @property
    def quarantined(self) -> frozenset[int]:
        """Indexes of the GPUs that are skipped, because a worker hung there."""
        return self._quarantine.indexes(self._clock())

    @property
    def paused_until(self) -> float | None:
        """End of the pause in Unix seconds, infinite if it has no end; None without a pause."""
        pause = self._active_pause  # read once, because another thread may end the pause meanwhile
        return pause.unix if pause is not None and self._clock() < pause.until else None

    def read(self, timeout: float) -> Reading:
        """Return a reading of all GPUs within *timeout* seconds.

        A later answer is for the next call, if that call gets no newer one in time: see `WorkerClient.read`.

        Raises:
            NvmlPaused: `pause` was called, or the driver is about to be unbound.
            NvmlAbsent: This host has no driver or no GPU.
            NvmlDown: NVML fails or hangs.
            NvmlLocked: Another daemon reads the GPUs.
            NvmlUnavailable: The worker is late, or is being replaced; the GPUs may be healthy.
        """
        with self._lock:
            try:
                return self._read(time.monotonic() + timeout)
            except NvmlUnavailable as error:
                if type(error) in (NvmlUnavailable, NvmlLate) and self._is_silent():
                    raise NvmlDown(str(error)) from error
                raise

    def pause(self, seconds: float | None = None) -> bool:
        """End the worker and start none for that time, or until `resume`; wait at most eight seconds.

        Returns:
            Whether the worker is gone and the device files are free; if not, it hangs in the kernel.
        """
        with self._lock:
            self._start_pause(seconds, "paused")
            self._end_worker("pause")
            child = self._child
        # Not under the lock, for which the sampler's thread would wait in `read`.
        return child is None or child.wait_reaped()

    def resume(self) -> None:
        """End a pause; the next `read` starts a worker, which reads every GPU."""
        with self._lock:
            self._active_pause = None
            self._silent_since = None
            self._quarantine = Quarantine()
            self._lost_gpus = LostGpuPolicy()

    def close(self) -> None:
        """End the worker within four seconds. Call this only after the last `read` has returned."""
        if self._child is not None:
            self._child.close()
            self._child = self._client = None

    def _read(self, until: float) -> Reading:
        client = self._live_client()
        try:
            answer = client.read(self.quarantined, self.interval, until)
        except WorkerFailed as error:
            raise self._replace_worker(f"the NVML worker failed: {error}", error.reason) from error
        except msgspec.MsgspecError as error:
            raise self._replace_worker(f"the NVML worker failed: {error}", "error") from error
        if answer is None:
            raise self._late_error(client)
        if answer.reading.error:
            raise self._worker_error(answer.reading)
        # The answer skipped GPUs that are no longer quarantined. What is left of the timeout is for another request.
        if not self._quarantine.accept(answer.reading.gpus, answer.skipped):
            return self._read(until)
        return self._accept(answer.reading)

    def _live_client(self) -> WorkerClient:
        """Return the client of the live worker, and start one if there is none."""
        now = self._clock()
        if self._child is not None and self._child.ending and self._child.is_reaped():
            self._child = self._client = None
        if self._active_pause is not None:
            if now < self._active_pause.until:
                raise NvmlPaused(self._active_pause.text)
            self._active_pause = None
        kind, cause = self._problem
        # The next worker waits until the last one is reaped, so that never two hang in one driver.
        if self._child is not None and self._child.ending:
            stuck = ", which ignores even SIGKILL: it hangs in the kernel" if self._child.stuck else ""
            raise kind(f"{cause}; waiting for the worker, process {self._child.pid}, to end{stuck}")
        if self._client is not None:
            return self._client
        if now < self._retry_at:
            raise kind(cause)
        return self._start_worker()

    def _start_worker(self) -> WorkerClient:
        try:
            self._child = WorkerProcess([*self._command, str(os.getpid())], self._clock)
        except OSError as error:
            raise self._replace_worker(f"the NVML worker cannot be started: {error}", "") from error
        self._counters.worker_replaced()
        self._lost_gpus.worker_replaced()
        self._has_answered = False
        self._client = WorkerClient(self._child, self._clock)
        return self._client

    def _accept(self, reading: Reading) -> Reading:
        """Return the reading as the daemon sees it: with all workers' counters and the GPUs that are gone."""
        self._has_answered = True
        self._silent_since = None
        self._failure_backoff.reset()
        self._absence_backoff.reset()
        if self._lost_gpus.accept(reading.gpus, self._clock()):
            self._end_worker("gpu_lost")
            self._problem = NvmlUnavailable, "a GPU is lost; a new NVML worker reads the other GPUs"
        self.last = self._counters.accept(self._known_gpus.accept(reading))
        return self.last

    def _is_silent(self) -> bool:
        """Return whether there has been no reading for too long, counted from the first call without one."""
        now = self._clock()
        if self._silent_since is None:
            self._silent_since = now
        return now - self._silent_since > max(SILENCE_SECONDS, 2 * self.interval)

    def _late_error(self, client: WorkerClient) -> NvmlUnavailable:
        self.skipped += client.is_request_old
        silence, waited, gpu = client.silence, client.waited, client.current_gpu
        if silence > client.silence_deadline:
            where = ""
            if gpu is not None:
                self._quarantine.add(gpu, self._clock())
                where = f" at GPU {gpu}, which is skipped for a while,"
            cause = f"the NVML worker hung for {silence:.0f} s{where} and is replaced; check dmesg for Xid"
        elif waited > client.answer_deadline:
            cause = f"the NVML worker has read GPUs for {waited:.0f} s and is replaced; check dmesg for Xid"
        else:
            deadline = f"it is replaced after {client.silence_deadline:.0f} s{'' if gpu is None else ' at one GPU'}"
            return NvmlLate(f"the NVML worker has not answered for {waited:.1f} s; {deadline}")
        return self._replace_worker(cause, "timeout", kind=NvmlDown)

    def _worker_error(self, reading: Reading) -> NvmlUnavailable:
        """Return the exception for an error from the worker, which ends after it."""
        # Another daemon reads the GPUs, so the lack of readings here is no sign of a fault.
        if reading.reason == "locked":
            self._silent_since = None
            return self._replace_worker(reading.error, "", self._absence_backoff, NvmlLocked)
        if reading.absent:
            return self._replace_worker(reading.error, "", self._absence_backoff, NvmlAbsent)
        # After a first reading the error may be this worker's alone, and not the driver's: the next worker decides.
        kind = NvmlUnavailable if self._has_answered else NvmlDown
        error = self._replace_worker(reading.error, _REASON_BY_RESULT.get(reading.reason, "error"), kind=kind)
        if reading.reason != "gpu_unbind":
            return error
        return NvmlPaused(self._start_pause(UNBIND_PAUSE, f"{reading.error}; paused").text)

    def _replace_worker(
        self, cause: str, reason: str, backoff: Backoff | None = None, kind: type[NvmlUnavailable] = NvmlUnavailable
    ) -> NvmlUnavailable:
        """End the worker, schedule the next one, and return the exception to raise until then."""
        self._end_worker(reason)
        self._problem = kind, cause
        self._retry_at = self._clock() + (backoff or self._failure_backoff).next_delay()
        return kind(cause)

    def _end_worker(self, reason: str) -> None:
        if self._child is not None and not self._child.ending:
            self._child.terminate()
            if reason:
                self.restarts[reason] += 1

    def _start_pause(self, seconds: float | None, why: str) -> _Pause:
        length = math.inf if seconds is None else seconds
        unix = self._wall() + length
        until = "" if length == math.inf else f" until {datetime.fromtimestamp(unix).astimezone():%H:%M:%S}"
        text = f"{why}{until}; trackside resume-gpu ends the pause"
        self._active_pause = _Pause(self._clock() + length, unix, text)
        self._problem = NvmlUnavailable, "the pause is over"
        self._retry_at = -math.inf
        self._silent_since = None
        # During the pause, GPUs may be reset, added or removed, so nothing that was seen of them still applies.
        self._quarantine = Quarantine()
        self._lost_gpus = LostGpuPolicy()
        self._known_gpus = KnownGpus()
        return self._active_pause


def worker_command(settings: WorkerSettings) -> list[str]:
    """Return the command that starts a worker with these settings."""
    return own_module("trackside_daemon.nvml.worker", msgspec.json.encode(settings).decode())


def worker_settings(gpu: NvmlSection) -> WorkerSettings:
    """Return the worker's settings from the configuration."""
    return WorkerSettings(gpu.extra, gpu.skip, gpu.simulate, gpu.profile, gpu.trouble)


class KnownGpus:
    """GPUs that have been up since this object was made, by UUID."""

    def __init__(self) -> None:
        self._gpus: dict[str, GpuReading] = {}

    def accept(self, reading: Reading) -> Reading:
        """Return the reading with missing UUIDs restored and with the GPUs that are gone.

        A worker that never saw a lost GPU up cannot report its UUID.
        """
        present = {gpu.uuid for gpu in reading.gpus}
        by_index = {gpu.index: gpu for uuid, gpu in self._gpus.items() if uuid not in present}
        gpus = [
            msgspec.structs.replace(by_index[gpu.index], unsupported=gpu.unsupported)
            if not gpu.uuid and gpu.values == DOWN and gpu.index in by_index
            else gpu
            for gpu in reading.gpus
        ]
        self._gpus |= {
            gpu.uuid: GpuReading(gpu.index, gpu.uuid, gpu.info, DOWN) for gpu in gpus if gpu.uuid and gpu.values != DOWN
        }
        present = {gpu.uuid for gpu in gpus}
        gone = [gpu for uuid, gpu in self._gpus.items() if uuid not in present]
        return msgspec.structs.replace(reading, gpus=gpus, gone=gone)


class LostGpuPolicy:
    """GPUs that are up or lost, by UUID, across workers; all times are of one monotonic clock."""

    def __init__(self) -> None:
        self._up: set[str] = set()
        self._lost: set[str] = set()
        self._tolerated_until: dict[str, float] = {}
        self._backoffs: dict[str, Backoff] = {}

    def worker_replaced(self) -> None:
        """Forget which GPUs are up: the new worker has never seen a GPU up that stays lost."""
        self._up = set()
        self._lost = set()

    def accept(self, gpus: Collection[GpuReading], now: float) -> bool:
        """Return whether to replace the worker after this reading."""
        # The reading after the loss decides, since the Xid that explains the loss may come between the two.
        replace = any(now >= self._tolerated_until.get(uuid, now) for uuid in self._lost)
        if replace:
            for uuid in self._lost:
                self._tolerate(uuid, now)
        up = {gpu.uuid for gpu in gpus if gpu.uuid and gpu.values != DOWN}
        self._lost |= self._up - up
        self._up = up
        return replace

    def _tolerate(self, uuid: str, now: float) -> None:
        if now - self._tolerated_until.get(uuid, now) > MAX_TOLERANCE:
            del self._backoffs[uuid]
        delay = self._backoffs.setdefault(uuid, Backoff(FIRST_TOLERANCE, MAX_TOLERANCE)).next_delay()
        self._tolerated_until[uuid] = now + delay
