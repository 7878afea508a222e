"""Series of the machine with their labels, in a window and with few samples of the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from histories import BEGIN, history, opened

from trackside_daemon.history.read.resources import Resource, Resources
from trackside_daemon.history.read.series import Window
from trackside_daemon.model.records import MachineSample

if TYPE_CHECKING:
    from pathlib import Path

CLOCK, LOAD = 'trackside_gpu_clock_hertz{gpu="0"}', "trackside_host_load1"


def test_the_series_of_the_wanted_families_in_a_window(tmp_path: Path) -> None:
    with history(tmp_path) as kept:
        samples = [MachineSample(BEGIN + second, {CLOCK: second, LOAD: 1.0}) for second in range(9)]
        kept.put([opened("net-1"), *samples])
        with kept.database.reading() as connection:
            window = Window("time", BEGIN + 2, BEGIN + 7)
            (clock,) = Resources(connection, window, 100).of("trackside_gpu_clock_hertz")
            (newest,) = Resources(connection, window, 100, 4).of("trackside_gpu_clock_hertz")
            assert Resources(connection, Window("time", 0.0, 1.0), 100).of("trackside_gpu_clock_hertz") == []
    points = [(BEGIN + second, float(second)) for second in range(2, 8)]
    assert clock == Resource("trackside_gpu_clock_hertz", {"gpu": "0"}, points, 2.0, 7.0)
    assert newest.points == points[-3:], "four rows of the log, of which the last is after the window"
    assert clock.increase == 5.0
    assert clock.mean == 4.5


def test_only_a_counter_has_two_values_of_its_first_bucket(tmp_path: Path) -> None:
    energy = 'trackside_gpu_energy_joules_total{gpu="0"}'
    with history(tmp_path) as kept:
        kept.put([opened("net-1")])
        kept.put([MachineSample(BEGIN + second, {CLOCK: second, energy: second}) for second in range(9)])
        with kept.database.reading() as connection:
            read = Resources(connection, Window("time", BEGIN, BEGIN + 8), 3)
            (clock,), (joules,) = (read.of(one.partition("{")[0]) for one in (CLOCK, energy))
    assert clock.points == [(BEGIN + second, float(second)) for second in (2, 5, 8)]
    assert (clock.mean, clock.low) == (5.0, 0.0)
    assert joules.increase == 8.0
