"""Damaged messages: they cost neither memory nor any of the valid messages between them. fuzz/test_wire.py has any bytes."""

from __future__ import annotations

import gc
import random
import tracemalloc
from typing import TYPE_CHECKING

from wire_messages import FakeSession, RunsHarness, clock

from trackside.wire import (
    Heartbeat,
    open_envelope,
)
from trackside_daemon.ingest.client_sessions import ClientSessions
from trackside_daemon.ingest.connection import Connection
from trackside_daemon.model.families import daemon

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside_daemon.model.metric import Batch

SESSIONS = [bytes([index]) * 16 for index in range(3)]


class SessionsHarness:
    """Sessions and runs, with a valid session whose messages arrive between others."""

    def __init__(self) -> None:
        self.house = RunsHarness(keys=50, runs=8, sessions=40)
        self.sessions = ClientSessions(self.house.runs, most=40)
        self.good = FakeSession("good", name="good")
        self.sent = 0
        self.pushed: list[float] = []
        self.receive(self.good.frames("hello", self.good.hello()))

    def receive(self, frames: list[bytes]) -> list[Batch]:
        answers, batches = self.sessions.receive(Connection(b"peer"), frames, self.house.now)
        for answer in answers:
            open_envelope(answer[1:])
        for batch in batches:
            self.house.state.update(batch)
            if batch.receipt is not None:
                reported = self.sessions.committed(batch.receipt)
                assert reported is not None
                open_envelope(reported[1:])
        return batches

    def push(self) -> None:
        """Push a valid batch, whose samples must be in the resulting batches."""
        self.sent += 1
        self.house.after += 0.001
        batches = self.receive(self.good.batch(self.sent, after=self.house.after))
        assert [batch.receipt.refused for batch in batches if batch.receipt is not None] == [""]
        values = [sample.value for batch in batches for sample in batch.samples if sample.metric.name.endswith("_loss")]
        assert values == [float(self.sent)]

    def tick(self) -> None:
        self.house.after += 1.0
        for batch in self.sessions.tick(self.house.now):
            self.house.state.update(batch)


def spoilt(chance: random.Random, frames: list[bytes]) -> list[bytes]:
    """Return a valid message with an error in it."""
    way = chance.randrange(5)
    frame = chance.randrange(len(frames))
    data = bytearray(frames[frame])
    if way == 0:
        return frames[:frame] + frames[frame + 1 :]
    if way == 1:
        return [*frames[:frame], bytes(data[: chance.randrange(len(data) + 1)]), *frames[frame + 1 :]]
    if way == 2:
        return [*frames, chance.randbytes(chance.randrange(20))]
    for _ in range(chance.randrange(1, 4) if data else 0):
        data[chance.randrange(len(data))] = chance.randrange(256)
    return [*frames[:frame], bytes(data), *frames[frame + 1 :]]


def held() -> int:
    """Return the bytes of memory in use."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def test_bad_messages_between_good_ones_cost_neither_samples_nor_memory(count: Callable[[int, int], int]) -> None:
    chance, desk, total = random.Random(7), SessionsHarness(), count(480, 100_000)

    def abuse(messages: int) -> None:
        for _ in range(messages):
            victim = FakeSession(chance.choice("ab"), name=chance.choice("ab"), rank=chance.randrange(3))
            victim.id = chance.choice(SESSIONS)
            good = chance.choice(
                [
                    victim.frames("hello", victim.hello(last={"loss": 1.0}, step=1, progress_age=0)),
                    victim.batch(chance.randrange(1, 4), {"loss": 1.0, f"key-{chance.randrange(9)}": 2.0}),
                    victim.skip(1, chance.randrange(5)),
                    victim.frames("beat", Heartbeat(clock(desk.house.after))),
                    victim.frames("bye", victim.bye(), chance.randrange(4)),
                ]
            )
            desk.receive(spoilt(chance, good))
            desk.push()

    abuse(total // 2)
    desk.tick()
    grown = []
    tracemalloc.start()
    try:
        for _ in range(3):
            before = held()
            abuse(total // 6)
            grown.append(held() - before)
    finally:
        tracemalloc.stop()
    assert min(grown) < 100_000, "the interpreter's own tables may grow once, a leak grows each time"
    assert desk.house.get("steps_total", "good", "0") == float(desk.sent)
    refused = desk.house.state.values(desk.house.now.monotonic, daemon.INGEST_REJECTED)[0]
    assert all(refused[(reason,)] for reason in ("frames", "version", "envelope", "body"))
