"""Rows of `trackside replay` from lines, and the step durations of a stored run."""

from __future__ import annotations

import io
import json
from math import isnan
from typing import Any

import pytest

from trackside_daemon.cli.commands import replay_rows
from trackside_daemon.cli.commands.replay_rows import Durations, RowConverter
from trackside_daemon.detectors.replay import PushedRow
from trackside_daemon.detectors.step_durations import DURATION
from trackside_daemon.history.files.items import LINE_BYTES


def read(*lines: bytes, numbered: bool = True) -> tuple[list[PushedRow], list[tuple[int, str]]]:
    bad: list[tuple[int, str]] = []
    found = replay_rows.read(lines, RowConverter(numbered=numbered), lambda number, why: bad.append((number, why)))
    return list(found), bad


def line(**fields: Any) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def test_a_line_is_a_push() -> None:
    found, bad = read(line(step=7, time=1.5, values={"loss": 2}, rank=3, phase="eval", attempt=1, more=[1]))
    assert (found, bad) == ([PushedRow(0, 1, 3, 7, 1.5, "eval", {"loss": 2.0})], [])


def test_numbers_may_stand_next_to_the_step() -> None:
    found, bad = read(line(loss=0.5), line(loss=0.25, step=7, lr=1, note="x", rank=1, ok=True))
    assert (found, bad) == (
        [PushedRow(0, 0, 0, 0, 0.0, "", {"loss": 0.5}), PushedRow(1, 0, 1, 7, 1.0, "", {"loss": 0.25, "lr": 1.0})],
        [],
    )


def test_a_missing_value_continues() -> None:
    found, _ = read(
        line(values={"a": 1}), b"\n", line(step=8, values={}), line(values={"a": 1}), line(rank=1, values={"a": 1})
    )
    assert [(one.place, one.rank, one.step, one.time) for one in found] == [
        (0, 0, 0, 0.0),
        (2, 0, 8, 2.0),
        (3, 0, 9, 3.0),
        (4, 1, 0, 4.0),
    ]


def test_numbers_come_in_every_form() -> None:
    found, bad = read(
        b'{"values": {"a": NaN, "b": Infinity, "c": -Infinity, "d": 1}}',
        b'{"values": {"a": "nan", "b": "inf", "c": "-inf", "d": 1e0}}',
        b'{"values": {"a": "NaN", "b": 1e999, "c": "-Infinity", "d": 1}, "step": 3.0}',
    )
    assert bad == []
    for one in found:
        assert isnan(one.values["a"])
        assert [one.values[key] for key in "bcd"] == [float("inf"), float("-inf"), 1.0]
    assert [one.step for one in found] == [0, 1, 3]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"x", "one JSON object per line is expected"),
        (b"[1]", "a JSON object is expected"),
        (b'{"step": 1}', '"values" is required'),
        (b'{"values": {"loss": "high"}}', "loss: a number"),
        (b'{"values": {"loss": null}}', "got `null` at values"),
        (b'{"values": {"loss": true}}', "got `bool`"),
        (b'{"values": {}, "step": 1.5}', '"step" must be a whole number'),
        (b'{"values": {}, "step": "1"}', "got `str` at step"),
        (b'{"values": {}, "time": NaN}', '"time" must be'),
        (b'{"values": {"\xff": 1}}', "it is not UTF-8"),
        (b'{"values": ' + b"[" * 100_000, "nested too deep"),
        (b" " * (LINE_BYTES + 1), "longer than 16 MiB"),
    ],
)
def test_a_line_that_makes_no_sense_is_reported_by_its_number_and_left_out(text: bytes, why: str) -> None:
    found, bad = read(line(values={"a": 1}), text, line(values={"a": 2}))
    assert [one.place for one in found] == [0, 2]
    assert [number for number, _ in bad] == [2]
    assert why in bad[0][1]
    assert "\n" not in bad[0][1]


def test_what_else_an_export_has_is_passed_over() -> None:
    found, bad = read(line(kind="run", id="a", step=None), line(kind="samples", values={}), line(kind="event", step=3))
    assert ([one.place for one in found], bad) == ([1], [])


def test_a_line_that_is_too_long_ends_where_it_ends() -> None:
    stream = io.BytesIO(b"a" * (2 * LINE_BYTES + 9) + b"\nb\n" + b"c" * LINE_BYTES + b"\nd")
    assert [one[:1] for one in replay_rows.lines(stream)] == [b"a", b"b", b"c", b"d"]


def test_pieces_of_any_length_are_lines() -> None:
    for size in range(1, 9):
        text = b"ab\n\ncd\nefghij"
        pieces = [text[first : first + size] for first in range(0, len(text), size)]
        assert list(replay_rows.split(pieces)) == text.split(b"\n")


def durations(*pushed: tuple[int, float], **values: float) -> list[tuple[int, float]]:
    derive = Durations()
    found = [derive.duration(PushedRow(None, 0, 0, step, time, "", values)) for step, time in pushed]
    return [(one.step, one.values[DURATION]) for one in found if one is not None]


def test_a_step_takes_from_its_first_push_to_the_first_of_the_next() -> None:
    assert durations((0, 1.0), (0, 1.4), (1, 3.0), (5, 11.0), (5, 12.0), (6, 12.5)) == [(0, 2.0), (1, 2.0), (5, 1.5)]


def test_a_step_that_falls_begins_the_clock_anew() -> None:
    assert durations((8, 1.0), (9, 2.0), (5, 60.0), (6, 61.0)) == [(8, 1.0), (5, 1.0)]


def test_what_was_pushed_counts_instead() -> None:
    assert durations((0, 1.0), (1, 2.0), **{DURATION: 0.5}) == []


def test_ranks_and_attempts_have_clocks_of_their_own() -> None:
    derive = Durations()
    pushed = [
        PushedRow(None, attempt, rank, step, 9.0, "", {}) for attempt, rank, step in ((0, 0, 1), (0, 1, 2), (1, 1, 3))
    ]
    assert [derive.duration(one) for one in pushed] == [None, None, None]
