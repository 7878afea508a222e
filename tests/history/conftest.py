"""A store on a new file for each test, small blocks, and a count of what is read of the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from history.builders import Bench

from trackside_daemon.history import codec, log_rows
from trackside_daemon.history.read import charts, series
from trackside_daemon.history.record import packing, store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def bench(place: Path) -> Iterator[Bench]:
    """A store on a new file."""
    made = Bench(place)
    yield made
    made.close()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> int:
    """Blocks of 32 samples in cells of 4, so that little data has all resolutions and crosses many edges."""
    for module in (charts, codec, packing, series, store):
        monkeypatch.setattr(module, "BLOCK", 32, raising=False)
        monkeypatch.setattr(module, "CELL", 4, raising=False)
    for function in (codec.cells, codec.nonfinite):
        monkeypatch.setattr(function, "__defaults__", (4,))
    return 32


@pytest.fixture
def read_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the log rows that are read."""
    numbers: list[int] = []
    add = log_rows.LogRows.add

    def counted(self: log_rows.LogRows, number: int, data: bytes, shift: int) -> int:
        numbers.append(number)
        return add(self, number, data, shift)

    monkeypatch.setattr(log_rows.LogRows, "add", counted)
    return numbers
