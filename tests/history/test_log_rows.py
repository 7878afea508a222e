"""Log rows: their content, and the split at block ends."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from history.builders import SHIFT, block
from hypothesis import given
from hypothesis import strategies as st

from trackside_daemon.history import log_rows
from trackside_daemon.model.columns import Columns, decode

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=6)


@given(SIZES, st.integers(0, 50), st.integers(1, 17))
def test_blocks_are_cut_after_each_so_manieth_push_and_nothing_else_changes(
    sizes: list[int], pushes: int, size: int
) -> None:
    blocks = [
        block([f"k{number}", "x"], range(rows_), [float(100 * number + one) for one in range(2 * rows_)])
        for number, rows_ in enumerate(sizes)
    ]
    columns = decode(blocks)
    whole = [part for one in columns for part in pushes_of(one)]
    found = list(log_rows.split(columns, pushes, size))
    assert [part for group in found for one in group for part in pushes_of(one)] == whole
    counts = [sum(len(one.steps) for one in group) for group in found]
    assert all(counts)
    at = pushes
    for number, count in enumerate(counts):
        assert at // size == (at + count - 1) // size
        at += count
        assert at % size == 0 or number == len(counts) - 1


def pushes_of(columns: Columns) -> list[tuple[object, ...]]:
    """Return each push of some columns."""
    keys, steps, times, values, _ = columns
    width = len(keys)
    return [
        (tuple(keys), steps[row], times[row], tuple(values[row * width : (row + 1) * width]))
        for row in range(len(steps))
    ]


def test_a_row_comes_back_with_unix_microseconds() -> None:
    data = log_rows.encode(decode([block(["a", "b"], [7, 8], [1.0, 2.0, 3.0, 4.0], [1999, 2000])]))
    (part,) = log_rows.decode(data, SHIFT)
    assert (part.keys, list(part.steps)) == (["a", "b"], [7, 8])
    assert list(part.times) == [SHIFT // 1000 + 1, SHIFT // 1000 + 2]
    assert (list(part.column(0)), list(part.column(1))) == ([1.0, 3.0], [2.0, 4.0])


@given(st.binary(max_size=60), st.integers(0, 60), st.integers(0, 255))
def test_a_damaged_row_is_a_value_error(data: bytes, at: int, byte: int) -> None:
    written = bytearray(log_rows.encode(decode([block(["a"], [1, 2], [1.0, 2.0])])))
    written[at % len(written)] = byte
    for one in (data, bytes(written), bytes(written[:at])):
        with suppress(ValueError):
            log_rows.decode(one, 0)


@pytest.mark.parametrize("wrong", [{"keys": ["a", "a"]}, {"steps": b"12345678" * 3}, {"values": b""}])
def test_columns_that_do_not_fit_each_other_are_a_value_error(wrong: dict[str, object]) -> None:
    fields = {"keys": ["a"], "steps": bytes(16), "times": bytes(16), "values": bytes(16)}
    with pytest.raises(ValueError, match="damaged log row"):
        log_rows.decode(msgspec.msgpack.encode([{**fields, **wrong}]), 0)
