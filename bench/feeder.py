"""A client that only sends: hello, window, acknowledgements and resends like the real one."""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import zmq

from trackside.limits import BATCH_ROWS, IN_FLIGHT
from trackside.transport.resend_wait import ANSWER_SECONDS
from trackside.wire import (
    DURATION_BUCKETS,
    Block,
    Bye,
    Clock,
    Envelope,
    Hello,
    Histogram,
    Identity,
    Pushes,
    Totals,
    encode,
    open_envelope,
)

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from numpy.typing import NDArray

KEYS = (
    *("loss", "learning_rate", "grad_norm", "accuracy"),
    *(f"layer.{layer}/{what}" for layer in range(8) for what in ("weight_norm", "grad_norm")),
)


class Fed(NamedTuple):
    """Result of one client.

    Attributes:
        rows: All acknowledged rows.
        seconds: From the first batch to the last acknowledgement.
        cpu: CPU seconds of its process.
        resent: Messages that were sent again.

    """

    rows: int
    seconds: float
    cpu: float
    resent: int


class Feeder:
    """One rank of the run ``flood``.

    Attributes:
        rows: Rows sent so far.
        resent: Messages that were sent again.

    """

    def __init__(self, endpoint: str, rank: int, world: int) -> None:
        self.rows = self.resent = 0
        self._rank, self._world = rank, world
        self._number = 0
        self._session = os.urandom(16)
        self._unacked: deque[tuple[int, list[bytes]]] = deque()
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._socket = context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.connect(endpoint)
        self._built_at = self._received_at = time.monotonic_ns()
        self._durations = Histogram([0] * (len(DURATION_BUCKETS) + 1), 0.0)
        self._totals = Totals(step_duration=self._durations)

    @property
    def has_room(self) -> bool:
        """Return whether the window has room for another message."""
        return len(self._unacked) < IN_FLIGHT

    def greet(self) -> None:
        """Send hello, and wait for the welcome."""
        identity = Identity(
            run="flood",
            name="flood",
            rank=self._rank,
            local_rank=self._rank,
            world=self._world,
            local_world=self._world,
            host=socket.gethostname(),
            pid=os.getpid(),
            boot=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        )
        clock = _now()
        hello = Hello(identity, clock, clock.wall, self._totals)
        self._socket.send_multipart(encode(Envelope("hello", self._session), hello))
        answer = open_envelope(self._socket.recv_multipart())
        assert answer.kind == "welcome", answer

    def send_batch(self) -> None:
        """Send the next rows, stamped as if they had been pushed evenly since the last batch."""
        moment = time.monotonic_ns()
        steps = np.arange(self.rows, self.rows + BATCH_ROWS, dtype="<i8")
        times = np.linspace(self._built_at, moment, BATCH_ROWS, endpoint=False).astype("<i8")
        block = Block(list(KEYS), steps.tobytes(), times.tobytes(), values(self._rank, self.rows).tobytes())
        self.rows += BATCH_ROWS
        self._totals.pushes = self._totals.steps = self.rows
        seconds = (moment - self._built_at) / 1e9
        self._durations.counts[int(np.searchsorted(DURATION_BUCKETS, seconds / BATCH_ROWS))] += BATCH_ROWS
        self._durations.sum += seconds
        self._built_at = moment
        self._send("batch", Pushes(_now(), self._totals, [block]))

    def end(self) -> None:
        """Send bye, and wait until all is acknowledged."""
        self._send("bye", Bye(_now(), self._totals, "finished"))
        while self._unacked:
            self.listen(100)

    def listen(self, milliseconds: int) -> None:
        """Read the waiting acknowledgements; block for the first."""
        while self._socket.poll(milliseconds):
            answer = open_envelope(self._socket.recv_multipart())
            assert answer.kind in {"ack", "pace"}, answer
            while answer.kind == "ack" and self._unacked and self._unacked[0][0] <= answer.number:
                self._unacked.popleft()
                self._received_at = time.monotonic_ns()
            milliseconds = 0
        if self._unacked and time.monotonic_ns() - self._received_at > ANSWER_SECONDS * 1e9:
            self._received_at = time.monotonic_ns()
            self.resent += len(self._unacked)
            for _, frames in self._unacked:
                self._socket.send_multipart(frames)

    def _send(self, kind: str, body: Pushes | Bye) -> None:
        self._number += 1
        frames = encode(Envelope(kind, self._session, self._number), body)
        if not self._unacked:
            self._received_at = time.monotonic_ns()
        self._unacked.append((self._number, frames))
        self._socket.send_multipart(frames)


def values(rank: int, first: int) -> NDArray[np.float64]:
    """Return the rows of a batch, always the same: a schedule in float64, and noise in float32 like a framework's values."""
    noise = np.random.default_rng((rank, first)).standard_normal((BATCH_ROWS, len(KEYS)), np.float32)
    rows: NDArray[np.float64] = (np.float32(2.5) + np.float32(0.1) * noise).astype("<f8")
    rows[:, KEYS.index("learning_rate")] = 3e-4 * np.cos((first + np.arange(BATCH_ROWS)) / 1e7)
    return rows


def feed(end: Connection, endpoint: str, rank: int, world: int, seconds: float) -> None:
    """Send for *seconds* after the start signal, as fast as batches are acknowledged; then send the `Fed`."""
    feeder = Feeder(endpoint, rank, world)
    feeder.greet()
    end.send("ready")
    end.recv()
    begun, cpu = time.monotonic(), time.process_time()
    while time.monotonic() - begun < seconds:
        while feeder.has_room:
            feeder.send_batch()
            feeder.listen(0)
        feeder.listen(100)
    feeder.end()
    end.send(Fed(feeder.rows, time.monotonic() - begun, time.process_time() - cpu, feeder.resent))


def _now() -> Clock:
    return Clock(time.time_ns(), time.monotonic_ns())
