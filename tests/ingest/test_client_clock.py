"""The times of messages by this machine's clock: of a process here, of another machine, and of what was stored."""

from __future__ import annotations

import pytest
from wire_messages import WALL

from trackside.wire import Clock
from trackside_daemon.ingest.client_clock import ClientClock
from trackside_daemon.training.moment import Moment

HERE = 5000.0
"""The monotonic clock of this machine at `WALL`."""

AHEAD, OFF = 800.0, 30.0
"""By how much the monotonic clock and the wall clock of another machine are ahead."""


def now(after: float, moved: float = 0.0, asleep: float = 0.0) -> Moment:
    """Return the clocks of this machine *after* some seconds awake."""
    return Moment(WALL + after + asleep + moved, HERE + after, asleep)


def here(after: float, moved: float = 0.0) -> Clock:
    """Return the clocks of a process of this machine."""
    return Clock(round((WALL + after + moved) * 1e9), round((HERE + after) * 1e9))


def elsewhere(after: float, moved: float = 0.0) -> Clock:
    """Return the clocks of another machine."""
    return Clock(round((WALL + after + OFF + moved) * 1e9), round((HERE + AHEAD + after) * 1e9))


def sent(clock: ClientClock, message: Clock, moment: Moment) -> float:
    """Receive a message; return when it was sent, in seconds after the beginning."""
    return clock.receive(message, moment).wall / 1e9 - WALL


def test_a_message_of_this_machine_has_its_own_time_however_long_it_waited() -> None:
    clock = ClientClock(here(0.0), now(0.01), same_boot=True, late=False)
    assert clock.is_same
    assert clock.offset(here(0.0)) == 0.0
    assert sent(clock, here(1.0), now(90.0)) == 1.0
    assert clock.age(here(1.0), now(90.0)) == pytest.approx(89.0)


def test_a_message_from_before_this_machine_slept_has_the_time_before() -> None:
    clock = ClientClock(here(0.0), now(0.0), same_boot=True, late=False)
    assert sent(clock, here(1.0), now(2.0, asleep=8 * 3600.0)) == 1.0
    assert sent(clock, here(3.0, moved=8 * 3600.0), now(3.0, asleep=8 * 3600.0)) == 3.0 + 8 * 3600.0


def test_a_hello_that_waited_for_a_stopped_daemon_is_of_this_machine_all_the_same() -> None:
    clock = ClientClock(here(0.0), now(200.0), same_boot=True, late=False)
    assert clock.is_same
    assert clock.offset(here(0.0)) == 0.0


def test_a_process_in_a_time_namespace_has_another_clock() -> None:
    for start in (-3600.0, 3600.0):
        shifted = Clock(here(0.0).wall, round((HERE + start) * 1e9))
        clock = ClientClock(shifted, now(0.0), same_boot=True, late=False)
        assert not clock.is_same
        later = Clock(here(9.0).wall, round((HERE + start + 9.0) * 1e9))
        assert sent(clock, later, now(9.0)) == pytest.approx(9.0)


def test_the_fastest_message_of_another_machine_counts() -> None:
    clock = ClientClock(elsewhere(0.0), now(0.5), same_boot=False, late=False)
    assert clock.offset(elsewhere(0.0)) == pytest.approx(0.5 - OFF)
    assert sent(clock, elsewhere(1.0), now(1.02)) == pytest.approx(1.02)
    assert sent(clock, elsewhere(2.0), now(50.0)) == pytest.approx(2.02, abs=0.1)
    assert clock.age(elsewhere(2.0), now(50.0)) == pytest.approx(48.0, abs=0.1)


def test_the_clocks_of_another_machine_may_drift_apart() -> None:
    clock = ClientClock(elsewhere(0.0), now(0.0), same_boot=False, late=False)
    for second in range(0, 40_000, 10):
        slow = elsewhere(second * (1 - 5e-5))
        assert sent(clock, slow, now(second)) == pytest.approx(second, abs=0.15)


def test_a_machine_that_slept_is_measured_anew() -> None:
    clock = ClientClock(elsewhere(0.0), now(0.0), same_boot=False, late=False)
    # The other machine slept: its wall clock went on, its monotonic clock did not.
    assert sent(clock, elsewhere(1.0, moved=7200.0), now(7201.0)) == pytest.approx(7201.0)
    assert clock.age(elsewhere(1.0), now(7201.0)) == pytest.approx(0.0)
    # This machine slept: its monotonic clock is behind now.
    assert sent(clock, elsewhere(3602.0, moved=7200.0), now(7202.0, asleep=3600.0)) == pytest.approx(10802.0)


@pytest.mark.parametrize("moved", [-3600.0, 3600.0, 1e9])
def test_leftovers_of_a_process_of_this_boot_are_as_old_as_its_monotonic_clock_shows(moved: float) -> None:
    clock = ClientClock(here(0.0), now(500.0), same_boot=True, late=True)
    assert sent(clock, here(1.0, moved), now(500.0)) == pytest.approx(1.0)
    assert sent(clock, here(2.0), now(600.0, moved)) == pytest.approx(2.0 + moved)


def test_what_was_left_elsewhere_has_its_own_time_unless_that_is_still_to_come() -> None:
    clock = ClientClock(elsewhere(-900.0), now(500.0), same_boot=False, late=True)
    assert clock.offset(elsewhere(-900.0)) == 0.0
    assert sent(clock, elsewhere(-800.0), now(500.0)) == pytest.approx(OFF - 800.0)
    assert sent(clock, elsewhere(-700.0, moved=1e9), now(500.0)) == pytest.approx(500.0)
