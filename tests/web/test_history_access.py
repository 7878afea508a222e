"""Threads of the pages that read the history."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest
from processes import DEADLINE
from starlette.exceptions import HTTPException

from trackside_daemon.history.read.reader import UnknownRunError
from trackside_daemon.web.api import history_access
from trackside_daemon.web.api.history_access import BURST_SECONDS, THREADS, HistoryAccess


def access() -> HistoryAccess:
    return HistoryAccess(cast("Any", None), cast("Any", None), cast("Any", None))


def test_few_reads_compute_at_once_however_many_charts_a_page_has() -> None:
    begun, gate, lock, running = threading.Semaphore(0), threading.Event(), threading.Lock(), [0]

    def read() -> int:
        with lock:
            running[0] += 1
            now = running[0]
        begun.release()
        assert gate.wait(DEADLINE)
        with lock:
            running[0] -= 1
        return now

    async def load() -> list[int]:
        history = access()
        reads = asyncio.gather(*(history.compute(read) for _ in range(3 * THREADS)))
        for _ in range(THREADS):
            assert await asyncio.to_thread(begun.acquire, timeout=DEADLINE)
        gate.set()
        return await reads

    assert max(asyncio.run(load())) == THREADS


class Clock:
    """A clock that goes on while somebody sleeps or computes."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.rests: list[float] = []

    def monotonic(self) -> float:
        return self.now

    thread_time = monotonic

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.rests.append(seconds)


def test_a_thread_rests_as_long_as_it_computes_but_for_the_burst_of_a_page_that_opens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(history_access, "time", clock)
    monkeypatch.setattr(history_access, "THREADS", 1)

    def read() -> None:
        clock.now += 0.2

    async def load() -> None:
        history = access()
        for _ in range(4):
            await history.compute(read)
        clock.now += 60
        await history.compute(read)

    asyncio.run(load())
    assert clock.rests == pytest.approx([0, 0, 0.4 - BURST_SECONDS, 0.2, 0])


def test_errors_of_reads_are_answers() -> None:
    def read() -> None:
        raise UnknownRunError("no run 'x'")

    async def load() -> None:
        await access().compute(read)

    with pytest.raises(HTTPException, match="404"):
        asyncio.run(load())


def test_reads_that_have_not_begun_are_cancelled_at_the_end() -> None:
    gate = threading.Event()

    async def load() -> list[Any]:
        history = access()
        reads = [asyncio.ensure_future(history.compute(lambda: gate.wait(DEADLINE))) for _ in range(3 * THREADS)]
        await asyncio.sleep(0)
        history.close()
        gate.set()
        return await asyncio.gather(*reads, return_exceptions=True)

    ended = asyncio.run(load())
    assert [isinstance(one, asyncio.CancelledError) for one in ended] == [False] * THREADS + [True] * 2 * THREADS
