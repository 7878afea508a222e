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
from trackside_daemon.bridges import record_file
from trackside_daemon.bridges.mirrors.target import Row
from trackside_daemon.bridges.tensorboard.event_file import EventFile, masked_crc
from trackside_daemon.bridges.tensorboard.mirror import encoded_event, encoded_record
from trackside_daemon.history.files.left_out import LeftOut

if TYPE_CHECKING:
    from bridges.event_files import Scalar

FILES = Path(__file__).parent / "files"
EXPECTED = json.loads((FILES / "expected.json").read_text(encoding="utf-8"))


def scalars(file: EventFile, *, final: bool = True) -> list[Scalar]:
    """Return what is new in a file."""
    return [scalar for events in file.read(final=final) for scalar in events.scalars]


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are read in pieces of 64 KiB."""
    monkeypatch.setattr(record_file, "PIECE_BYTES", 64 << 10)


def record(step: int, **values: float) -> bytes:
    """Return a record with some scalars."""
    return encoded_record(encoded_event(Row(0, 0, True, step, 1_700_000_000_000_000 + step, values)))


@pytest.mark.parametrize("name", EXPECTED)
def test_a_file_of_another_writer_has_the_scalars_that_tensorboard_finds(name: str) -> None:
    left_out = LeftOut()
    found = [
        [tag, step, time, repr(value)]
        for tag, step, time, value in sorted(scalars(EventFile(FILES / name, left_out)), key=repr)
    ]
    assert (found, left_out.notes()) == (EXPECTED[name], [])
    head = (FILES / name).read_bytes()[:12]
    assert struct.pack("<I", masked_crc(head[:8])) == head[8:]


def test_what_is_no_scalar_is_named_and_texts_and_hyperparameters_are_read() -> None:
    others = {name: [v for e in EventFile(FILES / name, LeftOut()).read() for v, _, _ in e.others] for name in EXPECTED}
    assert {value.kind for value in others["media.tfevents"]} == {"images", "histograms", "text"}
    assert next(value.content for value in others["media.tfevents"] if value.kind == "text") == "hello"
    (found,) = [value.content for value in others["torch-hparams.tfevents"] if value.content]
    assert found == {"lr": 0.1, "act": "gelu", "on": True}


def read(path: Path, data: bytes) -> tuple[list[int], list[str]]:
    """Return the steps of a file with this content, and what is left out of it."""
    path.write_bytes(data)
    left_out = LeftOut()
    return [step for _, step, _, _ in scalars(EventFile(path, left_out))], left_out.notes()


def test_a_torn_last_record_is_waited_for_and_reported_at_the_end(tmp_path: Path) -> None:
    path, data = tmp_path / "a.tfevents", b"".join(record(step, loss=step / 3) for step in range(20))
    path.write_bytes(b"")
    left_out = LeftOut()
    file = EventFile(path, left_out)
    found = []
    for end in (*range(0, len(data), 37), len(data), len(data) + 9):
        path.write_bytes((data + data)[:end])
        found += scalars(file, final=False)
        assert left_out.notes() == []
    assert [step for _, step, _, _ in found] == list(range(20))
    for _ in range(2):
        assert scalars(file) == []
    assert left_out.notes() == [f"left out: 1 incomplete last record of 9 bytes: a.tfevents at byte {len(data)}"]


def test_a_record_that_is_not_written_yet_is_waited_for_though_the_file_has_its_length(tmp_path: Path) -> None:
    path = tmp_path / "a.tfevents"
    first, second, third = (record(step, loss=1.0) for step in range(3))
    path.write_bytes(first + second[:20] + bytes(len(second) - 20))  # as over NFS, or before a crash of the machine
    left_out = LeftOut()
    file = EventFile(path, left_out)
    assert len(scalars(file, final=False)) == 1
    path.write_bytes(first + second + third)
    os.utime(path, (1.0, 1.0))
    assert [step for _, step, _, _ in scalars(file, final=False)] == [1, 2]
    assert left_out.notes() == []


def test_a_damaged_record_costs_itself_wherever_it_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.tfevents"
    first, second, third = (record(step, loss=1.0, other=2.0) for step in range(3))
    size = len(second)
    for place in range(size):  # the length, its checksum, the message, its checksum
        broken = bytearray(second)
        broken[place] ^= 0x40
        steps, notes = read(path, first + broken + third)
        assert steps == [0, 0, 2, 2], place
        assert notes == [f"left out: 1 damaged part of {size} bytes: a.tfevents at byte {len(first)}"]
        steps, notes = read(path, first + third + broken)
        assert steps == [0, 0, 2, 2], place
        assert len(notes) == 1
    steps, notes = read(path, first + bytes(5000))  # as a crash of the machine may leave it
    assert (steps, notes) == ([0, 0], [f"left out: 1 damaged part of 5,000 bytes: a.tfevents at byte {len(first)}"])
    steps, notes = read(path, first + bytes(5000) + third + second[:30] + first)
    assert steps == [0, 0, 2, 2, 0, 0]
    assert notes[0].startswith("left out: 2 damaged parts of 5,030 bytes: ")


def test_the_same_damage_in_two_records_is_found(tmp_path: Path) -> None:
    data = bytearray(b"".join(record(step, loss=1.0) for step in range(1, 101)))
    size = len(data) // 100
    for number in (10, 11, 50, 71, 99):
        data[number * size + size - 6] ^= 0x40
    steps, _ = read(tmp_path / "a.tfevents", bytes(data))
    assert steps == [step for step in range(1, 101) if step - 1 not in (10, 11, 50, 71, 99)]


def test_a_damaged_record_costs_itself_where_the_file_is_read_in_pieces(tmp_path: Path, small_pieces: None) -> None:
    rows = [record(step, loss=1.0) for step in range(2**21, 2**21 + 6000)]  # 0.3 MB
    data = bytearray(b"".join(rows))
    damaged = [*range(0, 6000, 97), 2310, 2311, 2312]
    for number in damaged:
        data[number * len(rows[0]) + number % len(rows[0])] ^= 1
    data[150_000:150_000] = bytes(120_000)
    steps, notes = read(tmp_path / "a.tfevents", bytes(data))
    lost = set(range(6000)) - {step - 2**21 for step in steps}
    assert set(damaged) <= lost <= {*damaged, 150_000 // len(rows[0])}
    assert notes[0].startswith(f"left out: {len(damaged) + 1} damaged parts of 12")


def test_large_values_are_not_read_and_what_is_imported_of_a_large_event_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_pieces: None
) -> None:
    path, reads = tmp_path / "a.tfevents", []
    picture = b"\x0a\x01i\x22" + b"\x80\x80\x20" + bytes(512 << 10)  # Summary.Value: the tag i, an image of 512 KiB
    loss = b"\x0a\x0b\x0a\x04loss\x15" + struct.pack("<f", 1.5)
    image = b"\x0a" + encoded_varint(len(picture)) + picture

    def large(*values: bytes) -> bytes:
        summary = b"".join(values)
        return encoded_record(
            b"\x09" + struct.pack("<d", 1.7e9) + b"\x10\x07\x2a" + encoded_varint(len(summary)) + summary
        )

    real = os.pread

    def pread(number: int, size: int, at: int) -> bytes:
        reads.append(size)
        return real(number, size, at)

    monkeypatch.setattr("trackside_daemon.bridges.record_file.os.pread", pread)
    path.write_bytes(large(image) * 16 + record(8, loss=2.5))
    events = list(EventFile(path, LeftOut()).read())
    assert [(value.kind, value.tag) for one in events for value, _, _ in one.others] == [("images", "i")] * 16
    assert [one[1] for one in events[-1].scalars] == [8]
    assert sum(reads) < 2 << 20
    both = large(loss, image)
    assert read(path, both + record(8, loss=2.5)) == ([7, 8], [])
    steps, notes = read(path, both[:-100] + b"x" + both[-99:] + record(8, loss=2.5))
    assert (steps, len(notes)) == ([8], 1)


@given(data=st.binary(max_size=300), flips=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4))
def test_no_bytes_raise_an_error(data: bytes, flips: list[tuple[int, int]]) -> None:
    content = bytearray(record(1, loss=1.0) + encoded_record(data) + record(2, loss=2.0, lr=0.1) + data)
    for place, value in flips:
        if place < len(content):
            content[place] = value
    path = Path("/dev/shm") / f"trackside-{id(content)}.tfevents"
    path.write_bytes(content)
    try:
        file = EventFile(path, LeftOut())
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
            assert repr(sorted(scalars(EventFile(path, LeftOut())), key=repr)) == repr(expected(path)), name
            compared += 1
    assert compared >= 20
