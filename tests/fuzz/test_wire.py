"""Messages of any bytes: only `WireError`, no stage of the daemon fails, and the API can show what was stored."""

from __future__ import annotations

from copy import deepcopy
from itertools import islice
from math import inf, nan
from typing import TYPE_CHECKING, Any

import msgspec
from fuzz.mutation import mutants
from fuzz.tables import Tables
from wire_messages import FakeSession, clock, moment, pushed

from trackside import wire
from trackside.buckets import Buckets
from trackside_daemon.alerts.active_alerts import ActiveAlerts
from trackside_daemon.alerts.settings import AlertsSection
from trackside_daemon.history.files.export import FORMATS, export
from trackside_daemon.history.read import alert_reader, reader
from trackside_daemon.history.read.attempts import stored_session
from trackside_daemon.ingest.client_sessions import ClientSessions
from trackside_daemon.ingest.connection import Connection
from trackside_daemon.model.state import State
from trackside_daemon.pipeline.pipeline import Pipeline
from trackside_daemon.service.finding_sources import finding_sources
from trackside_daemon.training.admission import PageLimits
from trackside_daemon.training.runs import Runs
from trackside_daemon.web.api.history_access import encode_json
from trackside_daemon.web.exposition import render

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MESSAGES = 20
SESSIONS = [bytes([number]) * 16 for number in range(3)]

SESSION = FakeSession("id", name="train", rank=1, local_rank=1, world=2)
ROOM = wire.ResourceUsage(1, 1, 1, 1, 1)
HISTOGRAM = wire.Histogram([1] * 18, 1.0, {-20: 1})
TOTALS = wire.Totals(
    pushes=1,
    steps=1,
    samples=1.0,
    tokens=1.0,
    nonfinite={"loss": 1},
    step_duration=HISTOGRAM,
    phases={"data": 1.0},
    data_wait=wire.DataWaits([1] * 18, 1.0, first=HISTOGRAM),
    paused=1.0,
    device=wire.Device({"forward": 1.0}, {"GPU-1": wire.Memory(1, 1, 1, 1)}, 1.0, 1.0),
    saves=wire.CheckpointTotals(1, HISTOGRAM, 1, 1.0),
)
HELLO = wire.Hello(
    SESSION.identity,
    clock(),
    clock().wall,
    TOTALS,
    config='{"lr": 0.1, "token": "x"}',
    tags=("tag",),
    total_steps=100,
    last={"loss": 1.0, "lr": 0.1},
    step=1,
    progress_age=0,
    about=wire.ProcessInfo(
        ("python", "a.py"),
        "/",
        "3.11",
        "Linux",
        {"torch": "2"},
        False,
        "pod",
        "space",
        "box",
        "launch",
        profile=wire.ProfilePlan(20, 1, (1,), True, True, True),
    ),
    phase="eval",
    room=ROOM,
)
BATCH = wire.Pushes(
    clock(),
    TOTALS,
    [pushed(["loss", "reward"], (0.0, 1, (2.5, 1.0)), (0.1, 2, (2.4, 1.0)))],
    [wire.TrainingEvent("checkpoint", 1, 1, '{"path": "a"}')],
    [wire.TrainingAlert("title", 1, "text", "warning", 1)],
    "eval",
    ROOM,
    [
        wire.DistributionFrame(
            "gradients",
            1,
            ["0.weight"],
            dict.fromkeys(wire.DISTRIBUTION_COLUMNS["gradients"], bytes(4)),
            [Buckets(1, 2, {3: 4}).packed()],
            1,
        )
    ],
)
COMPLETE: dict[str, Any] = {
    "hello": HELLO,
    "batch": BATCH,
    "beat": wire.Heartbeat(clock(), 0, TOTALS, {"loss": 1.0}, 2, "eval", ROOM),
    "bye": wire.Bye(clock(), TOTALS, "failed", "ValueError: x", True),
    "skip": wire.Skip(1, TOTALS),
    "stacks": wire.Stacks({"MainThread": ["a.py:1 f"]}),
    "flight": wire.Flight(
        {"MainThread": ["a.py:1 f"]},
        [
            wire.FlightGroup(
                "gloo", "0", "default_pg", [0], [wire.FlightEntry(1, "all_reduce", "started", "[4]", 4, 1.0, True)]
            )
        ],
    ),
    "steps": wire.OptimizerSteps(1),
    "profile": wire.Profile(b"x", "it ended"),
    "memory": wire.MemorySnapshot(
        [wire.Allocator("cuda:0", 1, 1, [wire.AllocationSite(["a.py:1 f"], 1, 1)])], ["none"]
    ),
    "steps?": wire.StepsQuestion(1.0),
    "profile?": wire.ProfileQuestion(1.0, True, True, True),
    "nack": wire.Nack("body"),
    "refused": wire.Refused([1]),
}
COMPLETE = {kind: msgspec.to_builtins(body, builtin_types=(bytes,)) for kind, body in COMPLETE.items()}
COMPLETE["hello"].update(acked=0, late=False)  # which would be left out
"""A body of each kind with all its fields."""
KINDS = [
    "hello",
    "batch",
    "beat",
    "bye",
    "skip",
    *sorted(wire.BODIES.keys() - {"hello", "batch", "beat", "bye", "skip"}),
]
STRANGE: list[Any] = [
    *(0, 1, -1, 2, 17, 2**31, 2**32, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -(2**31), -(2**63)),
    *(0.0, -0.0, 0.5, -1.0, 1e-320, 1e9, 1e18, 1e19, 1e308, -1e308, inf, -inf, nan, None, True, False),
    *(
        "",
        "loss",
        "b",
        "a" * 300,
        "\0",
        "\n",
        "\u202e",
        "\ufeff",
        "\x85",
        '"\\{}%',
        "\U0001f600",
        "[" * 2000,
        "nan",
        "1" * 5000,
    ),
    *('{"\\ud800": "\\udfff"}', '{"a": 1e999}', "finished", "lost", "running", "critical", "NaN", "null", "[1]"),
    *(b"", bytes(8), bytes(7), bytes(16), b"\xff" * 8, b"\x7f\xf0" + bytes(6), b"\xff" * 16, bytes(6) + b"\xf0\x7f"),
    *([], {}, ["loss", "loss"], ["a", "b"], [1] * 18, {"": 1}, {"loss": nan, "step": 2**63}, [[]], {"a": {"b": 1}}),
]


def packed(kind: str, number: int = 0, session: int = 0, *changes: int) -> bytes:
    """Return a message as `messages` reads it: kind and session, number, bytes that follow, changes of the body."""
    return bytes([KINDS.index(kind) * len(SESSIONS) + session, number, len(changes), *changes])


def leaves(body: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each place in a body as its container and its key there."""
    for place in list(body) if isinstance(body, dict) else range(len(body)):
        yield body, place
        if isinstance(body[place], dict | list):
            yield from leaves(body[place])


def messages(data: bytes) -> Iterator[list[bytes]]:
    """Yield the frames of the messages in *data*: complete ones with some strange values, and raw ones."""
    while len(data) >= 3:
        head, number, length = data[:3]
        rest = data[3 : 3 + length]
        kind, session = divmod(head, len(SESSIONS))
        if kind < len(KINDS):
            body = deepcopy(COMPLETE.get(KINDS[kind]))
            for place, value in zip(rest[::2], rest[1::2], strict=False):
                if places := list(leaves(body)) if body else []:
                    container, key = places[place % len(places)]
                    container[key] = deepcopy(STRANGE[value % len(STRANGE)])
            envelope = wire.Envelope(KINDS[kind], SESSIONS[session], number)
            yield [*wire.encode(envelope)[:2], b"" if body is None else msgspec.msgpack.encode(body)]
        else:
            yield [wire.PROTOCOL, *rest.split(b"\0\0", 3)] if head % 2 else rest.split(b"\0\0")
        data = data[3 + length :]


history: Any = Tables()


def check_body(frames: list[bytes]) -> None:
    """Check that a message is refused by `WireError` alone, or comes back equal."""
    try:
        envelope = wire.open_envelope(frames)
        body = wire.decode_body(envelope.kind, frames[2])
        for block in getattr(body, "blocks", ()):
            block.columns()
    except wire.WireError:
        return
    again = wire.encode(envelope, body)
    assert repr(wire.open_envelope(again)) == repr(envelope)
    assert repr(wire.decode_body(envelope.kind, again[2])) == repr(body)  # as texts, because NaN differs from itself


def check(data: bytes) -> None:
    """Pass the messages to the sessions and through all stages, and read what results."""
    with history.transaction():
        run_through(data)


def run_through(data: bytes) -> None:
    """Pass the messages through all stages."""
    after = 0.0
    state = State()
    sources = finding_sources(state, AlertsSection(), [], lambda: moment(after).monotonic, lambda: moment(after).wall)
    stages = Pipeline(state, history, sources, ActiveAlerts(), wall=lambda: moment(after).wall)
    sessions = ClientSessions(Runs(PageLimits(), 60.0), lambda id_: stored_session(history.connection, id_))
    for number, frames in enumerate(islice(messages(data), MESSAGES)):
        check_body(frames)
        after += 0.4
        uid = 1000 + (SESSIONS[2] in b"".join(frames))  # the last session is another user's
        outcome = sessions.receive(Connection(b"peer", uid), frames, moment(after))
        for batch in [*outcome.batches, *(sessions.tick(moment(after)) if number % 4 == 3 else ())]:
            stages.accept(batch)
            if batch.receipt is not None:
                sessions.committed(batch.receipt)
    assert not any(stages.failures.values())
    read(state, after)


def read(state: State, after: float) -> None:
    """Read all that the API and the page show."""
    for openmetrics in (False, True):
        page = render(state.snapshot(moment(after).monotonic), openmetrics=openmetrics).decode()
        series = [line.rpartition(" ")[0] for line in page.split("\n") if line and not line.startswith("#")]
        assert len(set(series)) == len(series)
    listed: list[Any] = [
        reader.runs(history.connection),
        reader.events(history.connection),
        alert_reader.alerts(history.connection),
    ]
    for run in listed[0]:
        listed.append(reader.run(history.connection, run["id"]))
        for form in FORMATS:
            b"".join(export(history, run["id"], form))
    msgspec.json.decode(encode_json(listed))


def seeds() -> list[bytes]:
    """Return conversations, most of them valid."""
    numbered = [(kind, place + 1) for place, kind in enumerate(("batch", "skip", "batch", "bye"))]
    begun = packed("hello") + packed("beat")
    ranks = packed("hello", 0, 1, 4, 0) + packed("batch", 1, 1) + packed("bye", 2, 1)
    changed = [packed("hello", 0, 2, place, place) + packed("batch", 1, 2, place, place) for place in range(0, 200, 9)]
    raw = bytes([255, 0, 30]) + b"\x93\xa5batch\xc4\x10" + bytes(13)
    return [
        begun + b"".join(packed(*one) for one in numbered),
        begun + ranks + b"".join(map(packed, KINDS)) + raw,
        *(begun + one for one in changed),
    ]


def test_any_message_is_refused_or_stored(fuzz: Callable[..., None]) -> None:
    def short() -> None:
        for data in mutants(seeds(), 80):
            check(data)

    fuzz(short, seeds())
