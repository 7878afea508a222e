"""Requests to one worker and its answers, one at a time, each within a deadline; and the quarantine of GPUs at which one hung."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from trackside_daemon.model.backoff import Backoff
from trackside_daemon.nvml.reading import Reading, ReadingRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trackside_daemon.linux.worker_process import WorkerProcess
    from trackside_daemon.nvml.reading import GpuReading

MAX_AGE_INTERVALS = 2.0  # intervals after which a measurement is too old to be used
MAX_AGE_SECONDS = 2.5  # minimum of that age in seconds
NAP = 0.05  # seconds at most between a request and the first poll for its answer

_decode = msgspec.json.Decoder(Reading).decode


class WorkerReading(NamedTuple):
    """A reading, and the indexes that its request skipped."""

    reading: Reading
    skipped: frozenset[int]


class WorkerClient:
    """Client of one worker, from its start.

    Args:
        child: The worker.
        clock: Clock of the deadlines, in seconds.

    Attributes:
        current_gpu: Index of the GPU that the worker started last in this request; None before the first.
        silence_deadline: Seconds without a sign of life after which to replace the worker.
        answer_deadline: Seconds from the request after which to replace the worker, even with signs of life.
    """

    def __init__(self, child: WorkerProcess, clock: Callable[[], float]) -> None:
        self.current_gpu: int | None = None
        self.silence_deadline = INIT_DEADLINE
        self.answer_deadline = INIT_DEADLINE + CYCLE_DEADLINE
        self._child = child
        self._clock = clock
        self._reads = 0
        self._has_request = False
        self._skipped: frozenset[int] = frozenset()
        self._requested_in = 0
        self._requested_at = 0.0
        self._alive_at = 0.0
        self._sent_at = 0.0
        self._last_duration = 0.0

    @property
    def waited(self) -> float:
        """Seconds since the last request."""
        return self._clock() - self._requested_at

    @property
    def silence(self) -> float:
        """Seconds since the last request or sign of life."""
        return self._clock() - self._alive_at

    @property
    def is_request_old(self) -> bool:
        """True if an earlier call of `read` made the pending request."""
        return self._requested_in != self._reads

    def read(self, quarantined: frozenset[int], interval: float, until: float) -> WorkerReading | None:
        """Return an answer to this call's request, or None if there is none in time.

        Args:
            quarantined: Indexes of GPUs for a new request to skip.
            interval: Seconds until the next request, for a new request to pass on.
            until: End of the wait, by `time.monotonic`; a later answer is for the next call.

        Raises:
            WorkerFailed: The worker has ended, or violates the protocol.
            MsgspecError: The worker's JSON does not match the schema.
        """
        self._reads += 1
        late = None
        # An answer to an earlier call's request is returned only if this call's request gets none in time. Otherwise
        # one slow cycle would delay all that follow, and a worker that is always slow would never give a reading.
        while True:
            if not self._has_request:
                self._send_request(quarantined, interval)
                self._nap(until)
            line = self._child.receive(until)
            if line is None:
                return late
            if line.isdigit():
                self.current_gpu = int(line)
                self._alive_at = self._clock()
                continue
            self._has_request = False
            self.silence_deadline = GPU_DEADLINE
            self.answer_deadline = CYCLE_DEADLINE
            answer = WorkerReading(_decode(line), self._skipped)
            self._last_duration = time.monotonic() - self._sent_at
            if answer.reading.error or not self.is_request_old:
                return answer
            now = time.monotonic()
            age = now - (answer.reading.measured_at or now)
            if age <= max(MAX_AGE_INTERVALS * interval, MAX_AGE_SECONDS):
                late = answer

    def _nap(self, until: float) -> None:
        # Every line that the worker writes would wake this thread up, so it sleeps through most of the expected time.
        self._sent_at = time.monotonic()
        time.sleep(max(0.0, min(0.8 * self._last_duration, NAP, until - self._sent_at)))

    def _send_request(self, quarantined: frozenset[int], interval: float) -> None:
        self._child.send(msgspec.json.encode(ReadingRequest(sorted(quarantined), interval)))
        self._skipped = quarantined
        self.current_gpu = None
        self._has_request = True
        self._requested_in = self._reads
        self._requested_at = self._alive_at = self._clock()


# Seconds without a sign of life before the first answer: without persistence mode nvmlInit wakes up all GPUs.
INIT_DEADLINE = 60.0
# Seconds without a sign of life after the first answer. Each GPU that the worker starts to read is such a sign.
GPU_DEADLINE = 10.0
# Seconds for all GPUs, even if the worker makes progress; `INIT_DEADLINE` is added for a first answer.
CYCLE_DEADLINE = 60.0
SILENCE_SECONDS = 60.0  # without a reading, for any reason, after which NVML counts as down; at least two intervals

# Each retry that hangs costs all GPUs a worker.
FIRST_QUARANTINE = 60.0  # seconds of quarantine after the first hang; doubled with each
MAX_QUARANTINE = 600.0  # maximum of these seconds


class Quarantine:
    """Indexes of quarantined GPUs, each with its back-off, valid while the indexes mean the same GPUs.

    All times are of one monotonic clock. Any thread may call `indexes`.
    """

    def __init__(self) -> None:
        self._until: dict[int, float] = {}
        self._backoffs: dict[int, Backoff] = {}
        self._uuids: list[str] = []

    def add(self, index: int, now: float) -> None:
        """Quarantine a GPU at which a worker hung."""
        self._until[index] = (
            now + self._backoffs.setdefault(index, Backoff(FIRST_QUARANTINE, MAX_QUARANTINE)).next_delay()
        )

    def accept(self, gpus: Sequence[GpuReading], skipped: frozenset[int]) -> bool:
        """Update the quarantine from a reading.

        Args:
            gpus: All GPUs in the order of their indexes; the UUID is empty if the worker could not read it.
            skipped: Indexes that the request skipped.

        Returns:
            Whether the reading is usable. It is not if indexes were skipped that now mean other GPUs, or that were
            released after the request. If the indexes mean other GPUs, the quarantine ends for all.
        """
        if not skipped <= self._until.keys():
            return False
        uuids = [gpu.uuid for gpu in gpus]
        if self._uuids and not _same_gpus(uuids, self._uuids):
            self._uuids = [] if skipped else uuids
            self._until = {}
            self._backoffs = {}
            return not skipped
        self._uuids = [new or old for new, old in zip(uuids, self._uuids or uuids, strict=True)]
        for index in {gpu.index for gpu in gpus} - skipped:
            self._until.pop(index, None)
            self._backoffs.pop(index, None)
        return True

    def indexes(self, now: float) -> frozenset[int]:
        """Return the indexes of the GPUs to skip now."""
        # A copy, because the thread that reads may add an index meanwhile.
        return frozenset(index for index, until in self._until.copy().items() if now < until)


def _same_gpus(new: Sequence[str], old: Sequence[str]) -> bool:
    """Compare UUIDs in order; an empty one matches any."""
    return len(new) == len(old) and all(
        new_uuid == old_uuid or not (new_uuid and old_uuid) for new_uuid, old_uuid in zip(new, old, strict=True)
    )
