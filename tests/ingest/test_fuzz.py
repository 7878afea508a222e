"""Fuzzed messages: the daemon survives any bytes, counts them, and loses none of the valid messages between them."""

from __future__ import annotations

import gc
import random
import tracemalloc
from typing import TYPE_CHECKING, Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from wire_messages import FakeSession, RunsHarness, clock

from trackside.packing import pack
from trackside.wire import (
    PROTOCOL,
    Block,
    Bye,
    Clock,
    Envelope,
    Heartbeat,
    Hello,
    Histogram,
    Identity,
    Pushes,
    Skip,
    Totals,
    encode,
    open_envelope,
)
from trackside_daemon.ingest.client_sessions import ClientSessions
from trackside_daemon.ingest.connection import Connection
from trackside_daemon.model.families import daemon
from trackside_daemon.web.exposition import render

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside_daemon.model.metric import Batch

KINDS = ("hello", "batch", "skip", "beat", "bye", "welcome", "hello?", "ack", "nack", "refused", "", "x")

numbers = (
    st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.sampled_from([0, 1, -1, 2**63 - 1, 2**64 - 1, -(2**63), 1e308, float("nan"), float("inf")])
)
plain = st.none() | st.booleans() | numbers | st.text(max_size=20) | st.binary(max_size=40)
anything = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4)
)


def struct(**fields: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy for a map of these fields, some of which are missing and some of which are anything."""
    return st.fixed_dictionaries({}, optional={name: field | plain for name, field in fields.items()})


keys = st.dictionaries(st.text(max_size=300) | st.sampled_from(["loss", "lr", "tokens"]), numbers, max_size=4)
clocks = struct(wall=numbers, monotonic=numbers)
histograms = struct(counts=st.lists(numbers, max_size=20) | st.just([1] * 18), sum=numbers)
totals = struct(
    **dict.fromkeys(("pushes", "dropped", "resent", "overhead", "steps", "samples", "tokens"), numbers),
    nonfinite=keys,
    step_duration=histograms,
)
identities = struct(
    run=st.sampled_from(["a", "b"]) | st.text(max_size=300),
    name=st.text(max_size=300),
    attempt=st.integers(-2, 5) | numbers,
    rank=st.integers(-2, 5) | numbers,
    **dict.fromkeys(("world", "local_world", "pid", "start"), numbers),
    boot=st.text(),
    gpus=st.lists(st.text(), max_size=3),
)
blocks = struct(
    keys=st.lists(st.text(max_size=5), max_size=3),
    **dict.fromkeys(("steps", "times"), st.sampled_from([b"", bytes(8), b"\xff" * 8, bytes(16), bytes(7)])),
    values=st.sampled_from([b"", bytes(8), bytes(16), b"\x7f\xf0" + bytes(6), b"\xff" * 8]),
)
bodies = struct(
    identity=identities,
    clock=clocks,
    totals=totals,
    started=numbers,
    acked=st.integers(0, 3) | numbers,
    total_steps=numbers,
    last=keys,
    step=numbers,
    progress_age=numbers,
    blocks=st.lists(blocks, max_size=3),
    first=st.integers(0, 9) | numbers,
    status=st.sampled_from(["finished", "failed", "lost", "running", ""]) | st.text(),
)


def packed(value: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(value)
    except (OverflowError, UnicodeEncodeError, msgspec.MsgspecError):
        return b"\xc1"


counts = st.integers(0, 2**64 - 1)
whole = st.integers(-(2**63), 2**63 - 1)
amounts = st.floats(min_value=0.0)
rows = st.integers(1, 3)
valid_totals = st.builds(
    Totals,
    **dict.fromkeys(("pushes", "dropped", "resent", "steps"), counts),
    **dict.fromkeys(("overhead",), amounts),
    **dict.fromkeys(("samples", "tokens"), st.none() | amounts),
    nonfinite=st.dictionaries(st.text(max_size=300), counts, max_size=4),
    step_duration=st.none() | st.builds(Histogram, st.lists(counts, min_size=18, max_size=18), amounts),
)
valid_clocks = st.builds(Clock, whole, whole)
valid_identities = st.builds(
    Identity,
    **dict.fromkeys(("run", "name", "boot", "host", "git_commit", "framework"), st.sampled_from("ab") | st.text()),
    **dict.fromkeys(("attempt", "rank", "world", "local_world"), st.integers(0, 2) | st.integers(0, 2**63 - 1)),
    **dict.fromkeys(("pid", "start"), st.integers(0, 2**63 - 1)),
    gpus=st.lists(st.text(), max_size=3).map(tuple),
)
valid_values = st.dictionaries(
    st.sampled_from(["loss", "lr", "tokens"]) | st.text(max_size=300), st.floats(), max_size=4
)
valid: dict[str, st.SearchStrategy[Any]] = {
    "hello": st.builds(
        Hello,
        valid_identities,
        valid_clocks,
        whole,
        valid_totals,
        acked=st.integers(-1, 2) | whole,
        total_steps=st.none() | whole,
        last=valid_values,
        **dict.fromkeys(("step", "progress_age"), st.none() | whole),
    ),
    "batch": st.builds(
        Pushes,
        valid_clocks,
        valid_totals,
        st.lists(
            st.builds(
                lambda keys, step, time, value, rows: Block(
                    keys, pack("q", [step] * rows), pack("q", [time] * rows), pack("d", [value] * rows * len(keys))
                ),
                st.lists(st.text(max_size=5) | st.just("loss"), min_size=1, max_size=3, unique=True),
                whole,
                whole,
                st.floats(),
                rows,
            ),
            max_size=3,
        ),
    ),
    "skip": st.builds(Skip, st.integers(-1, 5) | whole, valid_totals),
    "beat": st.builds(Heartbeat, valid_clocks, st.none() | whole),
    "bye": st.builds(Bye, valid_clocks, valid_totals, st.sampled_from(["finished", "failed", "lost"]) | st.text()),
}
SESSIONS = [bytes([index]) * 16 for index in range(3)]


@st.composite
def messages(draw: st.DrawFn) -> list[bytes]:
    """Draw a valid message, with the strangest contents that the format allows."""
    kind = draw(st.sampled_from(sorted(valid)))
    number = draw(st.integers(0, 5) | counts)
    return encode(Envelope(kind, draw(st.sampled_from(SESSIONS)), number), draw(valid[kind]))


envelopes = st.tuples(st.sampled_from(KINDS), st.sampled_from(SESSIONS), st.integers(0, 5) | numbers)
shaped = st.tuples(st.just(PROTOCOL), envelopes.map(packed), bodies.map(packed)).map(list)
loose = st.tuples(st.just(PROTOCOL), anything.map(packed), anything.map(packed)).map(list)
raw = st.lists(st.binary(max_size=60) | st.just(PROTOCOL) | st.just(b"trackside/7"), max_size=5)
arrivals = st.lists(messages() | shaped | loose | raw, max_size=10)


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


@given(arrivals)
def test_no_message_raises_and_the_good_ones_between_lose_nothing(found: list[list[bytes]]) -> None:
    desk = SessionsHarness()
    for frames in found:
        desk.receive(frames)
        desk.push()
        desk.tick()
    for openmetrics in (False, True):
        page = render(desk.house.state.snapshot(desk.house.now.monotonic), openmetrics=openmetrics).decode()
        series = [line.rpartition(" ")[0] for line in page.split("\n") if line and not line.startswith("#")]
        assert len(set(series)) == len(series)
    assert desk.house.get("steps_total", "good", "0") == float(len(found))


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
    chance, desk, total = random.Random(7), SessionsHarness(), count(1200, 100_000)

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
