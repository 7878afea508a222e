"""The tick: its samples about each collector, and its time."""

from __future__ import annotations

import errno
import gc
import logging
import os
import queue
import threading
import time
import weakref
from typing import TYPE_CHECKING

import pytest
from processes import DEADLINE, is_running
from scripted_workers import pid

from trackside_daemon.collectors.base import NothingToCollect, StillBusy
from trackside_daemon.model.metric import Batch, Metric, Sample
from trackside_daemon.nvml.handle.handle import Nvml
from trackside_daemon.nvml.reading import WorkerSettings
from trackside_daemon.sampling.collector_threads import CollectorPass
from trackside_daemon.sampling.sampler import SUCCESSES_TO_LOG, Sampler, deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ANSWER = Metric("trackside_answer", "gauge", "A number.")


class Collects:
    """A collector that returns samples or raises an error, as the test sets."""

    def __init__(self, name: str, does: Callable[[], list[Sample]] | None = None) -> None:
        self.name = name
        self.error: Exception | None = None
        self.does = does or (lambda: [Sample(ANSWER, (), 42.0)])

    def collect(self) -> list[Sample]:
        if self.error is not None:
            raise self.error
        return self.does()


class Clock:
    """A clock that only advances when a test sets it."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Hangs(Collects):
    """A collector that hangs until it is released, while the clock passes every deadline; once, or each time."""

    def __init__(self, name: str, clock: Clock, seconds: float = 10) -> None:
        super().__init__(name, self._hang)
        self.threads: list[threading.Thread] = []
        self.released = threading.Event()
        self._hangs = threading.Event()
        self._clock, self._seconds = clock, seconds

    def _hang(self) -> list[Sample]:
        self.threads.append(threading.current_thread())
        answer = [Sample(ANSWER, (), float(len(self.threads)))]
        if not self.released.is_set():
            self._clock.now += self._seconds
            self._hangs.set()
            self.released.wait()
        return answer

    def wait_until_it_hangs(self) -> None:
        """Wait until a call of `collect` hangs."""
        assert self._hangs.wait(DEADLINE)
        self._hangs.clear()

    def answer(self, sampled: Sampler) -> None:
        """Release the collector, and wait until its pass is finished."""
        self.wait_until_it_hangs()
        self.released.set()
        self.is_done(sampled)

    def is_done(self, sampled: Sampler) -> None:
        """Wait until the collector's pass is finished."""
        assert sampled._threads._detached[self.name].collector_pass.finished.wait(DEADLINE)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def stuck(clock: Clock) -> Iterator[Hangs]:
    hangs = Hangs("stuck", clock)
    yield hangs
    hangs.released.set()


def sampler(*collectors: Collects, clock: Clock | None = None) -> Sampler:
    """Return a sampler whose deadline only the given clock reaches, with frequent checks."""
    return Sampler(collectors, lambda _: None, 1.0, deadline=0.02, clock=clock or Clock(), wall=lambda: 1.7e9)


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


def test_the_duration_of_a_collector_is_reported() -> None:
    clock = Clock()

    def slowly() -> list[Sample]:
        clock.now += 0.015625
        return []

    assert about(sampler(Collects("slow", slowly), clock=clock).tick(100.0))["duration_seconds", "slow"] == 0.015625


def test_a_failure_leaves_no_reference_cycle() -> None:
    errors: list[weakref.ref[Exception]] = []

    def wait() -> None:
        raise StillBusy

    def fail() -> list[Sample]:
        try:
            wait()
        except StillBusy as cause:
            error = NothingToCollect()
            errors.extend((weakref.ref(cause), weakref.ref(error)))
            raise error from cause
        return []

    sampled = sampler(Collects("fails", fail))
    gc.disable()
    try:
        for now in (100.0, 101.0):  # the thread still refers to its last pass
            sampled.tick(now)
        assert [error() for error in errors[:2]] == [None, None]
    finally:
        gc.enable()


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
        for error in (
            None,
            once,
            None,
            OSError("zero"),
            OSError("one\ntwo"),
            OSError("three"),
            *[None] * (SUCCESSES_TO_LOG + 1),
        ):
            collector.error = error
            sampled.tick(100.0)
    assert messages(caplog) == [
        ("WARNING", "collector a fails: OSError: one two; --no-collector.a turns it off"),
        ("INFO", "collector a works again"),
    ]


def test_one_that_fails_now_and_then_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    collector = Collects("a")
    sampled = sampler(collector)
    with caplog.at_level(logging.INFO, "trackside"):
        for error in (OSError("late"), OSError("late"), *[None] * (SUCCESSES_TO_LOG - 1)) * 3:
            collector.error = error
            sampled.tick(100.0)
    assert messages(caplog) == [("WARNING", "collector a fails: OSError: late; --no-collector.a turns it off")]


def test_a_refusal_of_the_kernel_is_logged_in_plain_words(caplog: pytest.LogCaptureFixture) -> None:
    collector, counts = Collects("disk"), Collects("nvml")
    collector.error = OSError(errno.EACCES, os.strerror(errno.EACCES), "/proc/diskstats")
    counts.error = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    load = Collects("load")
    load.error = ValueError("proc/loadavg is empty; is procfs mounted?")
    sampled = sampler(collector, counts, load)
    for _ in range(3):
        sampled.tick(100.0)
    assert messages(caplog) == [
        ("WARNING", "collector disk fails: /proc/diskstats: permission denied; --no-collector.disk turns it off"),
        ("WARNING", "collector nvml fails: too many open files; --no-collector.gpu turns it off"),
        (
            "WARNING",
            "collector load fails: ValueError: proc/loadavg is empty; is procfs mounted? --no-collector.load turns it off",
        ),
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


def test_what_has_nothing_to_collect_fails_no_more_than_it_succeeds() -> None:
    """Paused GPUs must not cause an alert about a collector that has worked before and now fails."""
    collector = Collects("gpu")
    sampled = sampler(collector)
    succeeded = ("last_success_timestamp_seconds", "gpu")
    assert succeeded in about(sampled.tick(100.0))
    collector.error = OSError("late")
    assert succeeded in about(sampled.tick(101.0))
    collector.error = NothingToCollect("paused until 10:00:00")
    reported = about(sampled.tick(102.0))
    assert (reported["success", "gpu"], succeeded in reported) == (0, False)
    collector.error = None
    assert succeeded in about(sampled.tick(103.0))


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
    reported = about(sampled.tick(tick))
    assert (reported["skipped_total", "a"], reported["skipped_total", "b"]) == (skipped, skipped)


def test_a_source_that_is_still_busy_skips_its_tick_and_no_other_failure_does() -> None:
    slow, broken = Collects("slow"), Collects("broken")
    sampled = sampler(slow, broken)
    broken.error = OSError("disk on fire")
    for slow.error in (StillBusy("no answer for 1.2 s"), None, StillBusy("no answer for 1.1 s")):
        reported = about(sampled.tick(100.0))
    assert (reported["skipped_total", "slow"], reported["skipped_total", "broken"]) == (2, 0)
    assert reported["success", "slow"] == 0


def test_a_source_that_stays_busy_is_logged_once_and_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    slow = Collects("slow")
    slow.error = StillBusy("no answer for 1.2 s")
    sampled = sampler(slow)
    with caplog.at_level(logging.INFO, "trackside"):
        for _ in range(3):
            sampled.tick(100.0)
    assert messages(caplog) == [("INFO", "collector slow is still busy: no answer for 1.2 s")]


def test_a_collector_that_hangs_costs_only_itself_and_is_logged_once(
    stuck: Hangs, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    sampled = sampler(Collects("a"), stuck, Collects("b"), clock=clock)
    with caplog.at_level(logging.INFO, "trackside"):
        for times in (1, 2, 3):
            batches = sampled.tick(100.0)
            assert [batch.source for batch in batches] == ["a", "b", "sampler"]
            reported = about(batches)
            assert [reported["success", name] for name in ("a", "stuck", "b")] == [1, 0, 1]
            assert [reported["skipped_total", name] for name in ("a", "stuck", "b")] == [0, times, 0]
            assert reported["duration_seconds", "stuck"] == 10
    line = (
        "collector stuck has not answered for 10.0 s; it is left out until it does; --no-collector.stuck turns it off"
    )
    assert messages(caplog) == [("WARNING", line)]
    assert len(stuck.threads) == 1


def test_an_answer_of_a_collector_after_it_hung_is_too_old_and_then_it_works_again(
    stuck: Hangs, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    sampled = sampler(stuck, Collects("b"), clock=clock)
    sampled.tick(100.0)
    sampled.tick(101.0)
    stuck.answer(sampled)
    caplog.clear()
    with caplog.at_level(logging.INFO, "trackside"):
        assert [batch.source for batch in sampled.tick(102.0)] == ["b", "sampler"]
        assert sampled.states()["stuck"]["state"] == "slow"
        stuck.is_done(sampled)
        for answer in range(SUCCESSES_TO_LOG):
            batches = sampled.tick(103.0)
            assert [batch.source for batch in batches] == ["stuck", "b", "sampler"]
            assert batches[0].samples == [Sample(ANSWER, (), 2.0 + answer)]
    assert messages(caplog) == [("INFO", "collector stuck works again")]


def test_a_collector_that_is_always_too_slow_for_a_tick_is_shown_a_tick_late_and_logged_once(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    slow = Hangs("slow", clock, seconds=0.75)
    sampled = sampler(slow, Collects("b"), clock=clock)
    with caplog.at_level(logging.INFO, "trackside"):
        assert about(sampled.tick(100.0))["success", "slow"] == 0
        for answer in (1.0, 2.0, 3.0):
            slow.answer(sampled)
            slow.released.clear()
            batches = sampled.tick(101.0)
            assert [batch.source for batch in batches] == ["slow", "b", "sampler"]
            assert batches[0].samples == [Sample(ANSWER, (), answer)]
            reported = about(batches)
            assert (reported["success", "slow"], reported["skipped_total", "slow"]) == (1, 1)
            assert reported["duration_seconds", "slow"] == 0.75
        why = "takes 0.75 s but a tick waits only 0.02 s, so its samples arrive one tick late"
        assert sampled.states()["slow"] == {"state": "slow", "why": why}
        slow.answer(sampled)
        sampled.tick(102.0)
        slow.is_done(sampled)
        for _ in range(SUCCESSES_TO_LOG):
            assert about(sampled.tick(103.0))["success", "slow"] == 1
    assert messages(caplog) == [
        (
            "WARNING",
            f"collector slow {why}; a longer --sample.interval gives it more time; --no-collector.slow turns it off",
        ),
        ("INFO", "collector slow works again"),
    ]
    assert len(set(slow.threads)) <= 2


def test_a_collector_that_is_late_once_is_no_news(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    slow = Hangs("slow", clock, seconds=0.75)
    sampled = sampler(slow, clock=clock)
    with caplog.at_level(logging.INFO, "trackside"):
        for _ in range(4):
            sampled.tick(100.0)
            slow.answer(sampled)
            sampled.tick(101.0)
            slow.is_done(sampled)
            for now in (102.0, 103.0):
                assert about(sampled.tick(now))["success", "slow"] == 1
            slow.released.clear()
    assert messages(caplog) == []


def test_a_collector_slower_than_its_samples_are_shown_gives_none_and_logs_why(
    stuck: Hangs, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    sampled = sampler(stuck, clock=clock)
    with caplog.at_level(logging.INFO, "trackside"):
        sampled.tick(100.0)
        for _ in range(3):
            stuck.answer(sampled)
            stuck.released.clear()
            batches = sampled.tick(101.0)
            assert [batch.source for batch in batches] == ["sampler"]
            assert about(batches)["success", "stuck"] == 0
    line = (
        "collector stuck takes 10.00 s, too long for ticks of 1 s, and is left out; "
        "a longer --sample.interval gives it more time; --no-collector.stuck turns it off"
    )
    assert messages(caplog) == [("WARNING", line)]


def test_several_that_hang_have_a_thread_each_and_no_more_is_made_when_they_hang_again(clock: Clock) -> None:
    hanging = [Hangs(name, clock) for name in ("x", "y", "z")]
    sampled = sampler(*hanging, Collects("b"), clock=clock)
    for _ in range(3):
        reported = about(sampled.tick(100.0))
        assert [reported["success", name] for name in ("x", "y", "z", "b")] == [0, 0, 0, 1]
        for one in hanging:
            one.answer(sampled)
            one.released.clear()
    threads = {thread for one in hanging for thread in one.threads}
    assert len(threads) <= 4
    assert all(thread.is_alive() for thread in threads)
    sampled.stop()
    for thread in threads:
        thread.join(DEADLINE)
    assert not any(thread.is_alive() for thread in threads)


def test_a_child_outlives_the_turns_of_the_threads_that_collectors_run_in(stuck: Hangs, clock: Clock) -> None:
    nvml = Nvml(WorkerSettings(simulate=1))
    workers = []

    def read() -> list[Sample]:
        assert len(nvml.read(60.0).gpus) == 1
        workers.append(pid(nvml))
        return []

    stuck.released.set()
    sampled = sampler(Collects("gpu", read), stuck, clock=clock)
    sampled.tick(100.0)
    stuck.released.clear()
    for _ in range(3):
        sampled.tick(101.0)
    stuck.answer(sampled)
    sampled.tick(104.0)
    stuck.is_done(sampled)
    reported = about(sampled.tick(105.0))
    assert (reported["success", "gpu"], reported["success", "stuck"]) == (1, 1)
    assert len(workers) == 6
    assert len(set(workers)) == 1
    nvml.close()


def test_a_daemon_that_stood_still_gives_up_no_collector(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    collector = Hangs("a", clock, 3600)
    begun = CollectorPass([collector], clock, clock)
    thread = threading.Thread(target=begun.run, daemon=True)
    thread.start()
    collector.wait_until_it_hangs()
    polls = iter((False, True))
    monkeypatch.setattr(begun.finished, "wait", lambda _seconds: next(polls))
    assert begun.wait(0.5) is None
    collector.released.set()
    thread.join()


@pytest.mark.parametrize(("interval", "seconds"), [(0.1, 0.25), (1.0, 0.5), (4.0, 2.0), (300.0, 5.0)])
def test_a_collector_may_take_half_an_interval_within_bounds(interval: float, seconds: float) -> None:
    assert deadline(interval) == seconds


def test_the_thread_ticks_until_it_is_stopped() -> None:
    delivered: queue.Queue[list[Batch]] = queue.Queue()
    sampled = Sampler([Collects("a")], delivered.put, 0.01)
    sampled.start()
    assert [delivered.get(timeout=DEADLINE)[0].source for _ in range(3)] == ["a", "a", "a"]
    sampled.stop()
    assert not is_running("sampler")


def test_stop_does_not_wait_for_the_next_tick() -> None:
    delivered: queue.Queue[list[Batch]] = queue.Queue()
    sampled = Sampler([Collects("a")], delivered.put, 3600.0)
    sampled.start()
    delivered.get(timeout=DEADLINE)
    sampled.stop()
    assert not is_running("sampler")


def test_a_new_interval_holds_from_the_next_tick_on() -> None:
    delivered: queue.Queue[list[Batch]] = queue.Queue()
    sampled = Sampler([Collects("a")], delivered.put, 0.01)
    sampled.start()
    delivered.get(timeout=DEADLINE)
    sampled.interval = 50.0
    while True:
        (batch, _) = delivered.get(timeout=DEADLINE)
        if batch.until is not None and batch.until > time.monotonic() + 50:
            break
    sampled.stop()


def test_a_sampler_that_never_began_can_be_stopped() -> None:
    sampler(Collects("a")).stop()  # it neither raises nor waits for a thread that does not run
