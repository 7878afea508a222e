"""The clocks of a machine, read as of one moment."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from trackside.environment import clocks
from trackside.environment.clocks import Clocks, read_clocks

if TYPE_CHECKING:
    import pytest


def test_clocks_are_read_again_if_the_thread_stood_still_between_two_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0, 5_000_000, 10_000_000, 10_000_100])
    read = SimpleNamespace(monotonic_ns=lambda: next(moments), time_ns=lambda: 7, clock_gettime_ns=lambda _: 10_000_050)
    monkeypatch.setattr(clocks, "time", read)
    assert read_clocks() == Clocks(7, 10_000_000, 50)
