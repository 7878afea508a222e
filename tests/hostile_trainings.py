"""Trainings that mean harm, and one that measures what they do to others: each speaks the wire format without the real client.

``python -m hostile_trainings ENDPOINT ATTACK SECONDS DIRECTORY`` attacks for so long, with files in a directory of its user's.
"""

from __future__ import annotations

import gzip
import os
import sys
import time
import zipfile
import zlib
from array import array
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zmq

from trackside.environment.identity import identify
from trackside.limits import IN_FLIGHT
from trackside.media.pixels import SIGNATURE
from trackside.wire import (
    Block,
    Bye,
    Clock,
    Envelope,
    Hello,
    MediaItem,
    ProcessInfo,
    Profile,
    ProfilePlan,
    Pushes,
    Totals,
    TrainingEvent,
    encode,
    open_envelope,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

RESEND_SECONDS = 2.0
CONTEXT = zmq.Context()

#: By name, how a header of safetensors begins, what is repeated in it how often, and how it ends.
HEADERS = {
    "arrays": (b'{"x":[', b"[],", 8_000_000, b"[]]}"),
    "objects": (b"{", b'"x":{},', 4_000_000, b'"y":{}}'),
    "tensors": (b"{", b'"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},', 1_000_000, b'"y":1}'),
}


def header(name: str) -> bytes:
    """Return a file of safetensors whose header needs gigabytes when it is parsed."""
    begin, repeated, times, end = HEADERS[name]
    text = begin + repeated * times + end
    return len(text).to_bytes(8, "little") + text


def trace(events: int) -> bytes:
    """Return a small trace of PyTorch's profiler with so many events."""
    event = b'{"ph":"X","name":"aaaaaaa","ts":1,"dur":1,"tid":1,"pid":1},'
    return gzip.compress(b'{"traceEvents":[' + event * events + b'{"ph":"X","ts":1,"dur":1}]}', 1)


def archive(path: Path, members: int, megabytes: int) -> None:
    """Write a small archive whose members unpack to so much each."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as written:
        for number in range(members):
            written.writestr(f"archive/data/{number}", bytes(megabytes << 20))


def image() -> bytes:
    """Return a PNG of 1024 x 4096 pixels, RGBA with 16 bits: 32 kB, and 32 MiB unpacked."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    size = (1024).to_bytes(4, "big") + (4096).to_bytes(4, "big") + bytes([16, 6, 0, 0, 0])
    pixels = zlib.compress(bytes((1024 * 8 + 1) * 4096), 9)
    return SIGNATURE + chunk(b"IHDR", size) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


class RawTraining:
    """A session of a process of its own run, over a socket of its own.

    Args:
        endpoint: The push socket.
        run: Id and name of the run.
        hello: Further fields of its hello.

    Attributes:
        acknowledged: Seconds from the first sending of each message to its acknowledgement.
        waiting: Number of messages without one.
    """

    def __init__(self, endpoint: str, run: str, **hello: Any) -> None:
        self.acknowledged: list[float] = []
        self._id = os.urandom(16)
        self._hello = hello
        self._identity = identify(run, run, environ={})
        self._began = time.time_ns()
        self._number = self._acked = 0
        self._greeted_at = self._moved_at = 0.0
        self._greeted = False
        self._steps = 0
        self._sent: dict[int, tuple[list[bytes], float]] = {}
        self._questions: list[Envelope] = []
        self._socket: zmq.Socket[bytes] = CONTEXT.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.reconnect_ivl = 50
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._socket.connect(endpoint)
        self._greet()

    @property
    def waiting(self) -> int:
        return len(self._sent)

    def push(self, values: dict[str, float], rows: int = 1, **more: Any) -> None:
        """Send a batch of so many equal rows, and whatever else a batch may have."""
        steps = array("q", range(self._steps, self._steps + rows))
        self._steps += rows
        times = array("q", [time.monotonic_ns()]) * rows
        block = Block(list(values), steps.tobytes(), times.tobytes(), (array("d", values.values()) * rows).tobytes())
        self._add("batch", Pushes(_clock(), self._totals(), [block], **more))

    def end(self) -> None:
        """Send the bye."""
        self._add("bye", Bye(_clock(), self._totals(), "finished"))

    def answer(self, kind: str, body: Any) -> bool:
        """Answer a question of the daemon, if there is one; return whether there was."""
        asked = [one for one in self._questions if one.kind == f"{kind}?"]
        self._questions.clear()
        for one in asked:
            self._send(encode(Envelope(kind, self._id, one.number), body))
        return bool(asked)

    def poll(self, seconds: float = 0.0) -> None:
        """Read the answers of the daemon for so long; send again what it has not acknowledged in time."""
        until = time.monotonic() + seconds
        while self._socket.poll(max(0, round(1000 * (until - time.monotonic())))):
            self._read(open_envelope(self._socket.recv_multipart()))
        now = time.monotonic()
        if self._monitor.poll(0):
            while self._monitor.poll(0):
                self._monitor.recv_multipart()
            self._greet()
        elif not self._greeted and now - self._greeted_at > RESEND_SECONDS:
            self._greet()
        elif self._greeted and self._sent and now - self._moved_at > RESEND_SECONDS:
            self._resend()

    def close(self) -> None:
        """Close the connection."""
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close()

    def _greet(self) -> None:
        self._greeted, self._greeted_at = False, time.monotonic()
        hello = Hello(self._identity, _clock(), self._began, self._totals(), acked=self._acked, **self._hello)
        self._send(encode(Envelope("hello", self._id), hello))

    def _totals(self) -> Totals:
        return Totals(pushes=self._steps, steps=self._steps)

    def _add(self, kind: str, body: Any) -> None:
        self._number += 1
        now = time.monotonic()
        self._moved_at = self._moved_at if self._sent else now
        frames = encode(Envelope(kind, self._id, self._number), body)
        self._sent[self._number] = frames, now
        if self._greeted:
            self._send(frames)

    def _send(self, frames: list[bytes]) -> None:
        if self._socket.poll(0, zmq.POLLOUT):
            self._socket.send_multipart(frames, zmq.NOBLOCK)

    def _resend(self) -> None:
        self._moved_at = time.monotonic()
        for frames, _ in self._sent.values():
            self._send(frames)

    def _read(self, envelope: Envelope) -> None:
        now = time.monotonic()
        if envelope.kind in {"welcome", "ack", "nack"}:
            self._acked = max(self._acked, envelope.number)
            for number in [one for one in self._sent if one <= self._acked]:
                self.acknowledged.append(now - self._sent.pop(number)[1])
                self._moved_at = now
            if envelope.kind == "welcome":
                self._greeted = True
                self._resend()
        elif envelope.kind == "hello?":
            if self._greeted or now - self._greeted_at > 0.1:
                self._greet()
        elif envelope.kind.endswith("?"):
            self._questions.append(envelope)


def _clock() -> Clock:
    return Clock(time.time_ns(), time.monotonic_ns())


def _event(kind: str, fields: str) -> TrainingEvent:
    return TrainingEvent(kind, time.monotonic_ns(), 1, fields)


def _run(attack: str, number: int = 0) -> str:
    return f"{attack}-{os.getuid()}-{number}"


def rows(endpoint: str, _: Path) -> Iterator[None]:
    """Send full batches as fast as the daemon takes them, in eight sessions."""
    trainings = [RawTraining(endpoint, _run("rows", number)) for number in range(8)]
    values = {f"key{number}": 1.0 for number in range(32)}
    while True:
        for training in trainings:
            while training.waiting < IN_FLIGHT:
                training.push(values, 512)
            training.poll()
        yield


def media(endpoint: str, _: Path) -> Iterator[None]:
    """Send images that become large."""
    training, data = RawTraining(endpoint, _run("media")), image()
    while True:
        items = [MediaItem("image", f"k{number}", time.monotonic_ns(), data, 1) for number in range(110)]
        if training.waiting < IN_FLIGHT // 8:
            training.push({"loss": 1.0}, media=items)
        training.poll(0.01)
        yield


def plans(endpoint: str, _: Path) -> Iterator[None]:
    """Plan a profile for each epoch, each of two steps, and answer with traces that become large."""
    plan = ProfilePlan(steps=1, epochs=tuple(range(1000)))
    training = RawTraining(endpoint, _run("plans"), about=ProcessInfo(profile=plan))
    traces = [trace(events) for events in (4_300_000, 400_000)]
    for number in count():
        training.push({"loss": 1.0, "epoch": number // 2})
        training.poll(1.0)
        training.answer("profile", Profile(traces[number % 2]))
        yield


def audits(endpoint: str, directory: Path) -> Iterator[None]:
    """Report checkpoints that become large when they are read, and touch them again and again."""
    training = RawTraining(endpoint, _run("audits"))
    for name in HEADERS:
        (directory / f"{name}.safetensors").write_bytes(header(name))
    archive(directory / "zeros.pt", 200, 64)
    archive(directory / "many.pt", 20_000, 0)
    for number in count():
        events = []
        for path in directory.iterdir():
            path.touch()
            events.append(_event("checkpoint", f'{{"path": "{path}", "step": {number}}}'))
        training.push({"loss": 1.0}, events=events)
        training.poll(1.0)
        yield


def sessions(endpoint: str, _: Path) -> Iterator[None]:
    """Open sessions without end, each with failed hooks, and end them."""
    for number in count():
        training = RawTraining(endpoint, _run("sessions", number % 100))
        training.push({"loss": 1.0}, events=[_event("hook_failed", f'{{"hook": "{"h" * 6000}"}}')] * 32)
        training.end()
        training.poll(0.02)
        training.close()
        yield


def fields(endpoint: str, _: Path) -> Iterator[None]:
    """Send events whose fields have many names, in messages of the greatest size."""
    training = RawTraining(endpoint, _run("fields"))
    many = "{" + ",".join(f'"{number:x}":0' for number in range(300_000)) + "}"
    while True:
        if training.waiting < IN_FLIGHT:
            training.push({"loss": 1.0}, events=[_event("any", many)])
        training.poll(0.01)
        yield


ATTACKS = {one.__name__: one for one in (rows, media, plans, audits, sessions, fields)}


def main() -> None:
    """Attack."""
    endpoint, attack, seconds, directory = sys.argv[1:]
    until = time.monotonic() + float(seconds)
    for _ in ATTACKS[attack](endpoint, Path(directory)):
        if time.monotonic() > until:
            return


if __name__ == "__main__":
    main()
