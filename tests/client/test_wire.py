"""The wire format: its bytes, and the messages that are refused."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trackside import wire
from trackside.packing import pack, writable
from trackside.wire import (
    AllocationSite,
    Allocator,
    Batches,
    BatchesQuestion,
    BatchSamples,
    Block,
    Bye,
    Clock,
    Envelope,
    Flight,
    FlightEntry,
    FlightGroup,
    Heartbeat,
    Hello,
    Histogram,
    Identity,
    MemorySnapshot,
    ModuleCall,
    ModuleCalls,
    ModulesQuestion,
    Nack,
    OptimizerSteps,
    ProcessInfo,
    Profile,
    ProfilePlan,
    ProfileQuestion,
    Pushes,
    Refused,
    ResourceUsage,
    Skip,
    Stacks,
    StepsQuestion,
    Totals,
    TrainingAlert,
    TrainingEvent,
    Welcome,
    WireError,
    decode_body,
    encode,
    open_envelope,
)

if TYPE_CHECKING:
    from collections.abc import Callable

SESSION = bytes(range(16))
SESSION_BYTES = b"\xc4\x10\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f"
CLOCK = Clock(wall=1_700_000_000_000_000_000, monotonic=5_000_000_000)
TOTALS = Totals(
    pushes=10,
    dropped=1,
    resent=2,
    overhead=0.25,
    steps=9,
    samples=640.0,
    tokens=0.0,
    nonfinite={"loss": 1},
    step_duration=Histogram([0, 0, 0, 2, *[0] * 13, 1], 301.5),
)
IDENTITY = Identity(
    run="run-1",
    name="train",
    attempt=2,
    rank=3,
    local_rank=1,
    world=8,
    local_world=4,
    host="node7",
    pid=4242,
    start=777,
    boot="b00t",
    gpus=("GPU-a", "GPU-b"),
    job_id="99",
    git_commit="c0ffee",
    framework="torch 2.13.0",
)
BLOCK = Block(["loss", "lr"], pack("q", [1, -2]), pack("q", [3, 4]), pack("d", [0.5, float("nan"), 1.0, float("inf")]))

FRAMES = {
    name: (begin, bytes.fromhex(body))
    for name, begin, body in (
        line.split("|") for line in Path(__file__).with_name("wire_frames.txt").read_text().splitlines()
    )
}
"""By kind its envelope and body in hexadecimal digits, and by addition its kind and body. They never change."""
FROZEN: dict[str, tuple[int, Any]] = {
    "hello": (
        0,
        Hello(
            identity=IDENTITY,
            clock=CLOCK,
            started=1_699_999_999_000_000_000,
            totals=TOTALS,
            acked=7,
            config='{"lr":0.1}',
            tags=("a", "b"),
            total_steps=100,
            last={"loss": 0.5},
            step=9,
            progress_age=1000,
        ),
    ),
    "batch": (8, Pushes(CLOCK, TOTALS, [BLOCK])),
    "skip": (6, Skip(4, Totals(dropped=3))),
    "beat": (0, Heartbeat(CLOCK, 500)),
    "bye": (9, Bye(CLOCK, Totals(pushes=1), "failed", "ValueError", True)),
    "stacks": (4, Stacks({"MainThread 1": ["train.py:3 main"]})),
    "flight": (
        4,
        Flight(
            {"MainThread 1": ["train.py:3 main"]},
            [FlightGroup("gloo", "0", "default_pg", [0, 1], [FlightEntry(7, "all_reduce", "started", "[4]", 4, 0.5)])],
        ),
    ),
    "steps": (4, OptimizerSteps(70, 60)),
    "profile": (4, Profile(b"\x1f\x8b")),
    "memory": (4, MemorySnapshot([Allocator("cuda:0", 5, 6, [AllocationSite(["train.py:3 main"], 5, 1)])], ["none"])),
    "modules": (
        4,
        ModuleCalls(["a.mlp"], ["Linear"], 2, [ModuleCall(0, 1, 7, 1.0, 0.5, 64, 32, 0.25, 0.5)], 1, "none"),
    ),
    "batches": (
        4,
        Batches({9: [BatchSamples([48213, "a.png"], 2, {"48213": "b.png"}, "describe", "Images", 3, 2, 1, "late")]}, 5),
    ),
    "pong": (4, None),
    "welcome": (7, None),
    "hello?": (0, None),
    "ack": (70_000, None),
    "nack": (8, Nack("body")),
    "refused": (0, Refused([1])),
    "stacks?": (4, None),
    "flight?": (4, None),
    "steps?": (4, StepsQuestion(0.5)),
    "profile?": (4, ProfileQuestion(0.5, stacks=True)),
    "memory?": (4, None),
    "modules?": (4, ModulesQuestion(10, 2.5)),
    "batches?": (4, BatchesQuestion(9, before=1)),
    "ping": (4, None),
    "layers?": (100, None),
    "pace": (2000, None),
    "cancel?": (0, None),
}
ABOUT = ProcessInfo(("python", "train.py"), "/home/me", "3.11.7", "Linux 6.1.0 x86_64", {"torch": "2.13.0"}, False)
ROOM = ResourceUsage(2**26, 2**25, 2**26 - 1, 300, 1024)
ADDED: dict[str, tuple[str, Any]] = {
    "about": ("hello", msgspec.structs.replace(FROZEN["hello"][1], about=ABOUT)),
    "about nothing": ("hello", msgspec.structs.replace(FROZEN["hello"][1], about=ProcessInfo())),
    "what waits": ("beat", Heartbeat(CLOCK, 500, TOTALS, {"loss": 0.5}, 9)),
    "a phase and late": ("hello", msgspec.structs.replace(FROZEN["hello"][1], phase="eval", late=True)),
    "a pod": (
        "hello",
        msgspec.structs.replace(
            FROZEN["hello"][1], about=ProcessInfo(k8s_pod="train-0", k8s_namespace="ml", k8s_container="main")
        ),
    ),
    "a plan": (
        "hello",
        msgspec.structs.replace(FROZEN["hello"][1], about=ProcessInfo(profile=ProfilePlan(50, 5, (1, 5), stacks=True))),
    ),
    "the parents": ("hello", msgspec.structs.replace(FROZEN["hello"][1], about=ProcessInfo(parents=((4, 5), (1, 0))))),
    "a requested exit": ("bye", msgspec.structs.replace(FROZEN["bye"][1], requested="exit status 3")),
    "room in a batch": ("batch", msgspec.structs.replace(FROZEN["batch"][1], room=ROOM)),
    "room in a hello": ("hello", msgspec.structs.replace(FROZEN["hello"][1], room=ROOM)),
    "room in a beat": ("beat", Heartbeat(CLOCK, 500, room=ROOM)),
    "some room": ("beat", Heartbeat(CLOCK, 500, room=ResourceUsage(open_fds=3))),
    "what was said": (
        "batch",
        msgspec.structs.replace(
            FROZEN["batch"][1],
            events=[TrainingEvent("checkpoint", 1, 2, '{"bytes": 3}')],
            alerts=[TrainingAlert("stuck", 4, "for long", "critical", 5)],
            phase="eval",
        ),
    ),
}
"""What version 1 has been given since: its kind, and a body that has it."""

PLAIN: dict[str, tuple[Any, bytes]] = {
    "hello": (Hello(Identity("r", "n"), Clock(1, 2), 3, Totals()), b"\x84\xa8identity\x82\xa3run\xa1r\xa4name\xa1n"),
    "batch": (Pushes(Clock(1, 2), Totals(), []), b"\x83\xa5clock\x82\xa4wall\x01\xa9monotonic\x02\xa6totals\x80"),
    "beat": (Heartbeat(Clock(1, 2)), b"\x81\xa5clock\x82\xa4wall\x01\xa9monotonic\x02"),
    "bye": (Bye(Clock(1, 2), Totals(), "finished"), b"\x83\xa5clock\x82\xa4wall\x01\xa9monotonic\x02\xa6totals\x80"),
}
"""Messages whose optional fields are absent, and how they begin."""

every_kind = pytest.mark.parametrize("kind", FROZEN)
kinds_with_a_body = pytest.mark.parametrize("kind", [kind for kind, frozen in FROZEN.items() if frozen[1] is not None])


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(WireError) as caught:
        call()
    assert caught.value.reason in wire.REASONS
    assert str(caught.value).startswith(caught.value.reason + ": ")
    return caught.value.reason


def test_every_kind_of_message_is_frozen_here() -> None:
    assert list(FROZEN) == list(wire.BODIES)


@every_kind
def test_the_bytes_of_version_1_never_change(kind: str) -> None:
    (number, body), (begin, body_bytes) = FROZEN[kind], FRAMES[kind]
    envelope, envelope_bytes = Envelope(kind, SESSION, number), bytes.fromhex(begin)
    assert encode(envelope, body) == [b"trackside/1", envelope_bytes, body_bytes]
    assert open_envelope([b"trackside/1", envelope_bytes, body_bytes]) == envelope
    assert decode_body(kind, body_bytes) == body


def test_a_welcome_has_a_body_since_version_1_had_none() -> None:
    welcome = Welcome(("media",), "r", "two processes")
    frames = encode(Envelope("welcome", SESSION, 7), welcome)
    assert frames[2] == b"\x83\xa6stores\x91\xa5media\xa3run\xa1r\xa3why\xadtwo processes"
    assert decode_body("welcome", frames[2]) == welcome
    assert decode_body("welcome", encode(Envelope("welcome", SESSION, 7), Welcome())[2]) == Welcome()


@pytest.mark.parametrize("added", ADDED)
def test_what_was_added_to_version_1_comes_after_all_that_was_there_and_never_changes(added: str) -> None:
    kind, body = ADDED[added]
    old, new = FRAMES[kind][1], FRAMES[added][1]
    assert new[1:].startswith(old[1:])
    assert encode(Envelope(kind, SESSION), body)[2] == new
    assert decode_body(kind, new) == body
    assert msgspec.structs.asdict(decode_body(kind, old)).keys() == msgspec.structs.asdict(body).keys()


@pytest.mark.parametrize("kind", PLAIN)
def test_fields_with_their_default_value_are_not_written(kind: str) -> None:
    body, begins = PLAIN[kind]
    frame = encode(Envelope(kind, SESSION), body)[2]
    assert frame.startswith(begins)
    assert decode_body(kind, frame) == body


def test_the_buckets_of_the_step_duration_never_change() -> None:
    assert (
        " ".join(f"{bound:g}" for bound in wire.DURATION_BUCKETS)
        == "0.001 0.0025 0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 30 60 120 300"
    )


@kinds_with_a_body
def test_an_unknown_field_is_ignored(kind: str) -> None:
    body, frame = FROZEN[kind][1], FRAMES[kind][1]
    fields = msgspec.msgpack.decode(frame)
    newer = msgspec.msgpack.encode({"mood": {"deep": [1, None]}, **fields, "zest": 2})
    assert decode_body(kind, newer) == body


def test_a_longer_envelope_is_read_up_to_its_known_fields() -> None:
    longer = msgspec.msgpack.encode(["ack", SESSION, 5, "more", {}])
    assert open_envelope([wire.PROTOCOL, longer, b""]) == Envelope("ack", SESSION, 5)
    shorter = msgspec.msgpack.encode(["ack", SESSION])
    assert open_envelope([wire.PROTOCOL, shorter, b""]) == Envelope("ack", SESSION, 0)


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([], "frames"),
        ([b""], "frames"),
        ([b"GET / HTTP/1.1"], "frames"),
        ([b"trackside/1"], "frames"),
        ([b"trackside/1", b"\x93"], "frames"),
        ([b"trackside/1", b"", b"", b""], "frames"),
        ([b"trackside/2", b"", b""], "version"),
        ([b"trackside/2"], "version"),
        ([b"trackside/"], "version"),
        ([b"trackside/10" + bytes(99), b"", b""], "version"),
        ([b"trackside/1", b"", b""], "envelope"),
        ([b"trackside/1", b"\xc1", b""], "envelope"),
        ([b"trackside/1", b"\x80", b""], "envelope"),
        ([b"trackside/1", msgspec.msgpack.encode([]), b""], "envelope"),
        ([b"trackside/1", msgspec.msgpack.encode(["ack"]), b""], "envelope"),
        ([b"trackside/1", msgspec.msgpack.encode([7, SESSION, 1]), b""], "envelope"),
        ([b"trackside/1", msgspec.msgpack.encode(["sing", SESSION, 1]), b""], "envelope"),
        ([b"trackside/1", msgspec.msgpack.encode(["ack", SESSION[:15], 1]), b""], "envelope"),
        ([b"trackside/1", msgspec.msgpack.encode(["ack", "text", 1]), b""], "envelope"),
        ([b"trackside/1", msgspec.msgpack.encode(["ack", SESSION, -1]), b""], "envelope"),
        ([b"trackside/1", msgspec.msgpack.encode(["ack", SESSION, 1.5]), b""], "envelope"),
        ([b"trackside/1", b"\x93\xa3\xff\xfe\xfd" + SESSION_BYTES + b"\x01", b""], "envelope"),
    ],
)
def test_what_is_no_message_is_refused_by_its_reason(frames: list[bytes], reason: str) -> None:
    assert refusal(lambda: open_envelope(frames)) == reason


def test_a_frame_is_refused_above_its_bound_and_read_at_it() -> None:
    assert refusal(lambda: decode_body("batch", bytes(wire.MESSAGE_BYTES))) == "body"
    assert refusal(lambda: decode_body("batch", bytes(wire.MESSAGE_BYTES + 1))) == "size"
    assert refusal(lambda: open_envelope([wire.PROTOCOL, bytes(wire.MESSAGE_BYTES + 1), b""])) == "size"


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("beat", {}),
        ("beat", {"clock": None}),
        ("beat", {"clock": {"wall": 1}}),
        ("beat", {"clock": {"wall": 1, "monotonic": 2}, "progress_age": "old"}),
        ("beat", {"clock": {"wall": 1, "monotonic": 2}, "totals": {"pushes": -1}}),
        ("beat", {"clock": {"wall": 1, "monotonic": 2}, "last": {"loss": "low"}}),
        ("batch", {"clock": {"wall": 1, "monotonic": 2}, "totals": {"pushes": -1}, "blocks": []}),
        ("batch", {"clock": {"wall": 1, "monotonic": 2}, "totals": {"samples": -0.5}, "blocks": []}),
        ("batch", {"clock": {"wall": 1, "monotonic": 2}, "totals": {"nonfinite": {"loss": -1}}, "blocks": []}),
        ("batch", {"clock": {"wall": 1, "monotonic": 2}, "totals": {}, "blocks": [{"keys": ["loss"]}]}),
        ("batch", {"clock": {"wall": 2**63, "monotonic": 2}, "totals": {}}),
        ("skip", {"first": "one", "totals": {}}),
        ("bye", {"clock": {"wall": 1, "monotonic": 2}, "totals": {}, "status": None}),
        ("hello", {"identity": {"run": "r"}}),
        ("nack", []),
        ("refused", {"reads": ["1"]}),
    ],
)
def test_a_body_that_does_not_fit_its_schema_is_refused(kind: str, body: object) -> None:
    assert refusal(lambda: decode_body(kind, msgspec.msgpack.encode(body))) == "body"


@pytest.mark.parametrize("count", [0, 17, 19])
def test_a_histogram_of_another_length_is_refused(count: int) -> None:
    totals = Totals(step_duration=Histogram([0] * count, 0.0))
    frame = encode(Envelope("batch", SESSION, 1), Pushes(CLOCK, totals, []))[2]
    assert refusal(lambda: decode_body("batch", frame)) == "body"


@kinds_with_a_body
def test_a_message_that_is_cut_short_or_too_long_is_refused(kind: str) -> None:
    envelope, body = bytes.fromhex(FRAMES[kind][0]), FRAMES[kind][1]
    for end in range(len(body)):
        assert refusal(lambda end=end: decode_body(kind, body[:end])) == "body"  # type: ignore[misc]
    for end in range(len(envelope)):
        assert refusal(lambda end=end: open_envelope([wire.PROTOCOL, envelope[:end], body])) == "envelope"  # type: ignore[misc]
    assert refusal(lambda: decode_body(kind, body + b"\xc0")) == "body"
    assert refusal(lambda: open_envelope([wire.PROTOCOL, envelope + b"\xc0", body])) == "envelope"


@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1a", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff\xa1a"])
@kinds_with_a_body
def test_nesting_without_end_and_lengths_that_lie_are_refused(kind: str, opening: bytes) -> None:
    deep = opening * 100_000
    assert refusal(lambda: decode_body(kind, b"\x81\xa4mood" + deep)) == "body"
    assert refusal(lambda: open_envelope([wire.PROTOCOL, deep, b""])) == "envelope"
    assert refusal(lambda: open_envelope([wire.PROTOCOL, b"\x94\xa3ack" + SESSION_BYTES + b"\x01" + deep, b""]))


@pytest.mark.parametrize(
    "block",
    [
        Block([], b"", b"", b""),
        Block(["a"], b"", b"", b""),
        Block([], bytes(8), bytes(8), b""),
        Block(["a", "a"], bytes(8), bytes(8), bytes(16)),
        Block(["a"], bytes(7), bytes(8), bytes(8)),
        Block(["a"], bytes(9), bytes(9), bytes(9)),
        Block(["a"], bytes(8), bytes(16), bytes(8)),
        Block(["a"], bytes(16), bytes(8), bytes(16)),
        Block(["a"], bytes(8), bytes(8), bytes(16)),
        Block(["a", "b"], bytes(8), bytes(8), bytes(8)),
    ],
)
def test_a_block_with_columns_that_do_not_fit_each_other_is_refused(block: Block) -> None:
    assert refusal(block.columns) == "block"


@given(st.data())
def test_whatever_is_pushed_arrives_as_it_was(data: st.DataObject) -> None:
    keys = data.draw(st.lists(st.text(st.characters(codec="utf-8")), min_size=1, max_size=5, unique=True))
    int64 = st.integers(-(2**63), 2**63 - 1)
    rows = data.draw(st.integers(1, 5))
    steps, times = (data.draw(st.lists(int64, min_size=rows, max_size=rows)) for _ in range(2))
    values = data.draw(st.lists(st.floats(), min_size=rows * len(keys), max_size=rows * len(keys)))
    block = Block(keys, pack("q", steps), pack("q", times), pack("d", values))
    envelope = Envelope("batch", SESSION, data.draw(st.integers(0, 2**63 - 1)))
    frames = encode(envelope, Pushes(CLOCK, TOTALS, [block]))
    assert open_envelope(frames) == envelope
    arrived = decode_body("batch", frames[2])
    assert (arrived.clock, arrived.totals, arrived.blocks[0].keys) == (CLOCK, TOTALS, keys)
    columns = arrived.blocks[0].columns()
    assert [column.tolist() for column in columns[:2]] == [steps, times]
    assert struct.pack(f"{len(values)}d", *columns[2]) == struct.pack(f"{len(values)}d", *values)


@pytest.mark.parametrize(("typecode", "value"), [("q", 2**63), ("q", -(2**63) - 1), ("d", 10**400)])
def test_a_column_holds_nothing_but_64_bits(typecode: str, value: int) -> None:
    with pytest.raises(OverflowError):
        pack(typecode, [value])


def test_the_wall_time_of_a_push_comes_from_the_pair_of_clocks() -> None:
    assert math.isclose(CLOCK.wall_seconds(5_000_000_000), 1_700_000_000.0)
    assert math.isclose(CLOCK.wall_seconds(2_500_000_000), 1_699_999_997.5)


@given(st.text())
@example("caf\udce9")
def test_any_name_can_be_made_writable_and_a_good_one_stays_as_it_is(text: str) -> None:
    written = writable(text)
    assert written.encode().decode() == written
    assert len(written) == len(text)
    if text.isprintable():
        assert written == text
