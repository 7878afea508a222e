"""Event files: equal to what TensorBoard finds in them, torn, damaged, large, and hostile."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from bridges.event_files import MAKERS, expected
from hypothesis import given
from hypothesis import strategies as st
from processes import require

from trackside.packing import encoded_varint
from trackside_daemon.bridges.mirrors.target import Row
from trackside_daemon.bridges.tensorboard.crc32c import masked_crc
from trackside_daemon.bridges.tensorboard.event_file import EventFile
from trackside_daemon.bridges.tensorboard.mirror import encoded_event, encoded_record

if TYPE_CHECKING:
    from bridges.event_files import Scalar

FILES = Path(__file__).parent / "files"
EXPECTED = json.loads((FILES / "expected.json").read_text(encoding="utf-8"))


def scalars(file: EventFile) -> list[Scalar]:
    """Return what is new in a file."""
    return [scalar for events in file.read() for scalar in events.scalars]


def record(step: int, **values: float) -> bytes:
    """Return a record with some scalars."""
    return encoded_record(encoded_event(Row(0, 0, True, step, 1_700_000_000_000_000 + step, values)))


@pytest.mark.parametrize("name", EXPECTED)
def test_a_file_of_another_writer_has_the_scalars_that_tensorboard_finds(name: str) -> None:
    file = EventFile(FILES / name)
    found = [[tag, step, time, repr(value)] for tag, step, time, value in sorted(scalars(file), key=repr)]
    assert found == EXPECTED[name]
    assert (file.rest, file.problem, dict(file.skipped)) == (0, "", {})
    head = (FILES / name).read_bytes()[:12]
    assert struct.pack("<I", masked_crc(head[:8])) == head[8:]


def test_what_is_no_scalar_is_named_and_texts_and_hyperparameters_are_read() -> None:
    others = {name: [v for e in EventFile(FILES / name).read() for v, _, _ in e.others] for name in EXPECTED}
    assert {value.kind for value in others["media.tfevents"]} == {"images", "histograms", "text"}
    assert next(value.content for value in others["media.tfevents"] if value.kind == "text") == "hello"
    (found,) = [value.content for value in others["torch-hparams.tfevents"] if value.content]
    assert found == {"lr": 0.1, "act": "gelu", "on": True}


def test_a_torn_last_record_is_waited_for(tmp_path: Path) -> None:
    path, data = tmp_path / "a.tfevents", b"".join(record(step, loss=step / 3) for step in range(20))
    path.write_bytes(b"")
    file = EventFile(path)
    found = []
    for end in (*range(0, len(data), 37), len(data)):
        path.write_bytes(data[:end])
        found += scalars(file)
        assert file.problem == ""
    assert [step for _, step, _, _ in found] == list(range(20))
    assert file.rest == 0


def test_a_damaged_record_costs_itself_and_a_damaged_length_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "a.tfevents"
    first, second, third = (record(step, loss=1.0, other=2.0) for step in range(3))
    broken = bytearray(second)
    broken[28] = 0xFF  # a length within the message
    path.write_bytes(first + broken + third)
    file = EventFile(path)
    assert [step for _, step, _, _ in scalars(file)] == [0, 0, 2, 2]
    assert dict(file.skipped) == {"that are damaged": 1}
    path.write_bytes(first + b"\x01" + second[1:] + third)
    file = EventFile(path)
    assert [step for _, step, _, _ in scalars(file)] == [0, 0]
    assert (file.problem, file.rest) == (f"damaged at byte {len(first)}", len(second) + len(third))
    path.write_bytes(first + bytes(5000))  # as a crash of the machine may leave it
    file = EventFile(path)
    assert [step for _, step, _, _ in scalars(file)] == [0, 0]
    assert file.problem == f"damaged at byte {len(first)}"


def test_large_values_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, reads = tmp_path / "a.tfevents", []
    picture = b"\x0a\x01i\x22" + b"\x80\x80\x80\x10" + bytes(32 << 20)  # Summary.Value: the tag i, an image of 32 MiB
    loss = b"\x0a\x0b\x0a\x04loss\x15" + struct.pack("<f", 1.5)
    event = b"\x09" + struct.pack("<d", 1.7e9) + b"\x10\x07\x2a"
    summary = loss + b"\x0a" + encoded_varint(len(picture)) + picture
    length = struct.pack("<Q", len(event) + len(encoded_varint(len(summary))) + len(summary))
    with path.open("wb") as file:
        file.write(
            length + struct.pack("<I", masked_crc(length)) + event + encoded_varint(len(summary)) + summary + bytes(4)
        )
        file.write(record(8, loss=2.5))

    real = os.pread

    def pread(number: int, size: int, at: int) -> bytes:
        reads.append(size)
        return real(number, size, at)

    monkeypatch.setattr("trackside_daemon.bridges.tensorboard.event_file.os.pread", pread)
    opened = EventFile(path)
    events = list(opened.read())
    assert [scalar for one in events for scalar in one.scalars] == [
        ("loss", 7, 1.7e9, 1.5),
        ("loss", 8, 1_700_000_000.000008, 2.5),
    ]
    assert [(value.kind, value.tag) for one in events for value, _, _ in one.others] == [("images", "i")]
    assert sum(reads) < 4 << 20


@given(data=st.binary(max_size=300), flips=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4))
def test_no_bytes_raise_an_error(data: bytes, flips: list[tuple[int, int]]) -> None:
    content = bytearray(record(1, loss=1.0) + encoded_record(data) + record(2, loss=2.0, lr=0.1) + data)
    for place, value in flips:
        if place < len(content):
            content[place] = value
    path = Path("/dev/shm") / f"trackside-{id(content)}.tfevents"
    path.write_bytes(content)
    try:
        file = EventFile(path)
        found = scalars(file)
        assert len(found) <= 100
        file.close()
    finally:
        path.unlink()


def test_files_of_all_writers_equal_those_of_tensorboards_own_reader(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if not request.config.getoption("--soak"):
        pytest.skip("make soak installs TensorBoard")
    require("tensorboard")
    compared = 0
    for name, make in MAKERS.items():
        directory = tmp_path / name / "run"
        directory.mkdir(parents=True)
        make(directory)
        for path in sorted(directory.rglob("*tfevents*")):
            assert repr(sorted(scalars(EventFile(path)), key=repr)) == repr(expected(path)), name
            compared += 1
    assert compared >= 20
