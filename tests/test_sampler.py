"""The tick: what it says of each collector, and when it comes."""

from __future__ import annotations

import logging
import queue
from typing import TYPE_CHECKING

import pytest

from trackside_daemon.collectors.base import NothingToCollect, StillBusy
from trackside_daemon.metric import Batch, Metric, Sample
from trackside_daemon.sampler import Sampler

if TYPE_CHECKING:
    from collections.abc import Callable

ANSWER = Metric("trackside_answer", "gauge", "A number.")


class Collects:
    """A collector that does what it is told to."""

    metrics = (ANSWER,)

    def __init__(self, name: str, does: Callable[[], list[Sample]] | None = None) -> None:
        self.name = name
        self.error: Exception | None = None
        self.does = does or (lambda: [Sample(ANSWER, (), 42.0)])

    def collect(self) -> list[Sample]:
        if self.error is not None:
            raise self.error
        return self.does()


class Clock:
    """A clock that stands until it is moved."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def sampler(*collectors: Collects, clock: Clock | None = None) -> Sampler:
    return Sampler(collectors, lambda _: None, 1.0, clock=clock or Clock(), wall=lambda: 1.7e9)


def about(batches: list[Batch]) -> dict[tuple[str, str], object]:
    assert batches[-1].source == "sampler"
    return {
        (sample.metric.name.removeprefix("trackside_collector_"), sample.labels[0]): sample.value
        for sample in batches[-1].samples
    }


def messages(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records if record.levelno > logging.DEBUG]


def test_each_collector_gives_a_batch_and_the_sampler_one_about_all() -> None:
    batches = sampler(Collects("a"), Collects("b")).tick(100.0)
    assert [batch.source for batch in batches] == ["a", "b", "sampler"]
    assert all(batch.complete and batch.until == 102.5 for batch in batches)
    assert batches[0].samples == [Sample(ANSWER, (), 42.0)]


def test_a_collector_that_fails_stops_no_other() -> None:
    broken = Collects("broken")
    broken.error = OSError("disk on fire")
    batches = sampler(broken, Collects("sound")).tick(100.0)
    assert [batch.source for batch in batches] == ["sound", "sampler"]
    assert about(batches)["success", "broken"] == 0
    assert about(batches)["success", "sound"] == 1


def test_the_time_that_a_collector_takes_is_told() -> None:
    clock = Clock()

    def slowly() -> list[Sample]:
        clock.now += 0.25
        return []

    assert about(sampler(Collects("slow", slowly), clock=clock).tick(100.0))["duration_seconds", "slow"] == 0.25


def test_the_last_success_is_held_after_a_failure_and_absent_before_the_first() -> None:
    collector = Collects("a")
    collector.error = OSError("not yet")
    sampled = sampler(collector)
    assert ("last_success_timestamp_seconds", "a") not in about(sampled.tick(100.0))
    collector.error = None
    sampled.tick(101.0)
    collector.error = OSError("no more")
    assert about(sampled.tick(102.0))["last_success_timestamp_seconds", "a"] == 1.7e9


def test_a_failure_is_logged_once_when_it_lasts_and_once_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    collector = Collects("a")
    sampled = sampler(collector)
    once = OSError("is no news: what was sampled before is still served")
    with caplog.at_level(logging.INFO, "trackside"):
        for error in (None, once, None, OSError("zero"), OSError("one\ntwo"), OSError("three"), None, None):
            collector.error = error
            sampled.tick(100.0)
    assert messages(caplog) == [
        ("WARNING", "collector a fails: OSError: one two"),
        ("INFO", "collector a works again"),
    ]


def test_nothing_to_collect_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    collector = Collects("gpu")
    collector.error = NothingToCollect("no driver; install one")
    with caplog.at_level(logging.INFO, "trackside"):
        batches = sampler(collector).tick(100.0)
    assert messages(caplog) == [("INFO", "collector gpu has nothing to collect: no driver; install one")]
    assert about(batches)["success", "gpu"] == 0


def test_what_there_is_nothing_of_is_gone_at_once_and_what_failed_is_not() -> None:
    collector = Collects("gpu")
    sampled = sampler(collector)
    collector.error = OSError("late")
    assert [batch.source for batch in sampled.tick(100.0)] == ["sampler"]
    collector.error = NothingToCollect("no driver")
    gone = sampled.tick(101.0)[0]
    assert (gone.source, gone.samples, gone.complete) == ("gpu", [], True)


def test_failures_that_take_turns_are_each_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    collector = Collects("gpu")
    sampled = sampler(collector)
    with caplog.at_level(logging.INFO, "trackside"):
        for _ in range(3):
            for error in (OSError("late"), NothingToCollect("no driver")):
                collector.error = error
                sampled.tick(100.0)
    assert len(messages(caplog)) == 2


@pytest.mark.parametrize(
    ("now", "tick", "skipped"), [(10.0, 11.0, 0), (10.9, 11.0, 0), (11.2, 12.0, 1), (14.5, 15.0, 4), (9.0, 11.0, 0)]
)
def test_ticks_stay_on_the_grid_and_missed_ones_are_skipped_and_counted(now: float, tick: float, skipped: int) -> None:
    clock = Clock()
    sampled = sampler(Collects("a"), Collects("b"), clock=clock)
    clock.now = now
    assert sampled._next(10.0) == tick
    told = about(sampled.tick(tick))
    assert (told["skipped_total", "a"], told["skipped_total", "b"]) == (skipped, skipped)


def test_a_source_that_is_still_busy_skips_its_tick_and_no_other_failure_does() -> None:
    slow, broken = Collects("slow"), Collects("broken")
    sampled = sampler(slow, broken)
    broken.error = OSError("disk on fire")
    for slow.error in (StillBusy("no answer for 1.2 s"), None, StillBusy("no answer for 1.1 s")):
        told = about(sampled.tick(100.0))
    assert (told["skipped_total", "slow"], told["skipped_total", "broken"]) == (2, 0)
    assert told["success", "slow"] == 0


def test_a_source_that_stays_busy_is_told_once_and_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    slow = Collects("slow")
    slow.error = StillBusy("no answer for 1.2 s")
    sampled = sampler(slow)
    with caplog.at_level(logging.INFO, "trackside"):
        for _ in range(3):
            sampled.tick(100.0)
    assert messages(caplog) == [("INFO", "collector slow is still busy: no answer for 1.2 s")]


def test_the_thread_ticks_until_it_is_stopped() -> None:
    delivered: queue.Queue[list[Batch]] = queue.Queue()
    sampled = Sampler([Collects("a")], delivered.put, 0.01)
    sampled.start()
    assert [delivered.get(timeout=10)[0].source for _ in range(3)] == ["a", "a", "a"]
    sampled.stop()
    assert not sampled._thread.is_alive()


def test_stop_does_not_wait_for_the_next_tick() -> None:
    delivered: queue.Queue[list[Batch]] = queue.Queue()
    sampled = Sampler([Collects("a")], delivered.put, 3600.0)
    sampled.start()
    delivered.get(timeout=10)
    sampled.stop()
    assert not sampled._thread.is_alive()


def test_a_new_interval_holds_from_the_next_tick_on() -> None:
    delivered: queue.Queue[list[Batch]] = queue.Queue()
    sampled = Sampler([Collects("a")], delivered.put, 0.01)
    sampled.start()
    delivered.get(timeout=10)
    sampled.interval = 50.0
    while True:
        (batch, _) = delivered.get(timeout=10)
        if batch.until is not None and batch.until > sampled._clock() + 50:
            break
    sampled.stop()


def test_a_sampler_that_never_began_can_be_stopped() -> None:
    sampler(Collects("a")).stop()
