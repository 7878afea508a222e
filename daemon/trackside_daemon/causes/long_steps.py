"""Pauses within steps: steps that took much longer than the median one, and the period in which they come."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from operator import sub
from statistics import median

from trackside_daemon.causes.cause import LEAST_SHARE, Cause, Evidence, Kind, LostTime, drawn_accounts
from trackside_daemon.causes.facts import LongSteps
from trackside_daemon.history.codec import BLOCK
from trackside_daemon.history.read.attempts import Axis, read_axes
from trackside_daemon.history.read.reader import lowest_streams
from trackside_daemon.history.read.series import LogTails
from trackside_daemon.model.text import counted, duration, number

BLOCKS = 4  # evenly spaced blocks of steps that are read of an attempt
LONG = 3.0  # medians from which a step is long
LEAST = 4  # long steps that show a period
REGULAR = 0.75  # share of the distances between long steps that are about the median one, if they have a period
ALIKE = 0.1  # part by which such a distance differs from it at most


def read_long_steps(connection: sqlite3.Connection, uid: str, tails: LogTails) -> dict[int, LongSteps]:
    """Return the long steps of the lowest rank, by attempt, where they matter.

    Raises:
        ValueError: A block is damaged.
    """
    streams = lowest_streams(connection, uid)
    found = {attempt: long_steps(read_axes(connection, id_, tails[id_], BLOCKS)) for attempt, id_ in streams.items()}
    return {attempt: one for attempt, one in found.items() if one is not None}


def long_steps(axes: Sequence[Axis]) -> LongSteps | None:
    """Return the long steps among pushes of consecutive steps; None if they lost no share of the time that matters."""
    pushes = [push for axis in axes for push in _pushes(axis)]
    each = sorted(gap / steps for _, _, steps, gap in pushes)
    usual = each[len(each) // 2] if each else 0.0
    long = [push for push in pushes if push[3] > LONG * usual * push[2]]
    lost = [gap - steps * usual for _, _, steps, gap in long]
    whole = sum(gap for *_, gap in pushes)
    if sum(lost) < LEAST_SHARE * whole or not long:
        return None
    return LongSteps(
        len(long),
        sum(steps for _, _, steps, _ in pushes),
        sum(gap / steps for _, _, steps, gap in long) / len(long) / 1e6,
        usual / 1e6,
        sum(lost) / whole,
        max(lost) / 1e6,
        _period([step for step, *_ in long], [time / 1e6 for _, time, *_ in long]),
    )


def _pushes(axis: Axis) -> Iterator[tuple[int, int, int, int]]:
    """Yield step and time of each push of a later step than the one before, with the steps and microseconds since that.

    They are the last ones of a block, or of the log, which may be longer.
    """
    steps, times = axis[0][-BLOCK:], axis[1][-BLOCK:]
    pushes = zip(steps[1:], times[1:], map(sub, steps[1:], steps), map(sub, times[1:], times), strict=False)
    return (push for push in pushes if push[2] > 0 and push[3] > 0)


def _period(steps: Sequence[int], times: Sequence[float]) -> str:
    """Return every how many steps, else seconds, something comes that came at these; empty without a period."""
    spans: tuple[tuple[Sequence[float], float, Callable[[float], str]], ...] = (
        (steps, 1.0, lambda gap: f"{number(round(gap))} steps"),
        (times, 0.0, duration),
    )
    for places, off, words in spans:
        gaps = [after - before for before, after in pairwise(places)]
        usual = median(gaps) if len(gaps) >= LEAST - 1 else 0.0
        if usual > 1 and sum(abs(gap - usual) <= max(ALIKE * usual, off) for gap in gaps) >= REGULAR * len(gaps):
            return words(usual)
    return ""


def _pauses(kind: Kind, time: LostTime) -> Iterator[Cause]:
    for lost, account in drawn_accounts(kind, time):
        found = max(time.facts.long.values(), key=lambda one: one.share)
        every = f", one every {found.period}" if found.period else ""
        steps = f"{counted(found.long, 'step')} of {number(found.steps)} took {duration(found.seconds)} on average"
        text = f"{steps}, {duration(found.usual)} the median one{every}"
        when = f" every {found.period}" if found.period else ""
        yield kind.found(
            time,
            lost,
            Evidence(text, f"{time.facts.api}/performance"),
            account,
            summary=kind.happened.format(when),
            advice=kind.advice.format(when),
        )


PAUSES = Kind(
    "pauses",
    "the training paused within steps{}",
    "find what runs{} then: garbage collection (gc.freeze after the start), an evaluation, a checkpoint or a log outside of a "
    "phase, or another process of the machine",
    "p99 of the step time on the run's page",
    ("long_steps",),
    low=0.5,
    alerts=("SlowStep",),
    lost=_pauses,
)
