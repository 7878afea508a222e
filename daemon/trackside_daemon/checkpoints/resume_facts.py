"""Read from the history what the verdict on a resume needs: the steps before and after it, and how much is done twice."""

from __future__ import annotations

from itertools import pairwise
from math import isfinite
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.checkpoints.continuity import BEFORE, WINDOW, Quantity
from trackside_daemon.history.read import reader, series
from trackside_daemon.history.read.charts import chart
from trackside_daemon.history.read.series import Window

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping, Sequence

    from trackside_daemon.detectors.key_roles import Roles
    from trackside_daemon.history.read.reader import RunSeries

SAMPLES = 8192  # most samples of a series in a window; a window has some hundred steps
KEYS = 4096  # most keys of a rank that are searched
FIRST = 8  # first values of the run
LAST = 64  # last values of the earlier attempt
ROLES = ("loss", "gradient", "rate", "update")

Points = list[tuple[int, float, float]]
"""Step, Unix time and value."""


class ResumeFacts(NamedTuple):
    """An attempt and the ones before it.

    Attributes:
        step: The step after which the attempt goes on.
        reached: The highest step of the earlier attempts.
        first_step: The first step of the run.
        lost_seconds: How long the earlier attempt worked on the steps that are done again.
        down_seconds: From the last step of the earlier attempt to the first one of the new.
        quantities: The quantities to judge.
    """

    step: int
    reached: int
    first_step: int
    lost_seconds: float
    down_seconds: float
    quantities: Mapping[str, Quantity]

    @property
    def repeated(self) -> int:
        """The number of steps that are done again."""
        return max(0, self.reached - self.step)


def read_resume(connection: sqlite3.Connection, uid: str, attempt: int, roles: Roles) -> ResumeFacts | None:
    """Return the facts about an attempt of a run; None if it or the attempts before it have no steps.

    Args:
        connection: In a transaction.
        uid: The run's id.
        attempt: The attempt's number.
        roles: The roles of keys.

    Raises:
        ValueError: A block is damaged.
    """
    by_role: dict[str, dict[int, RunSeries]] = {}
    for number, one in zip(range(KEYS), reader.series(connection, uid), strict=False):  # noqa: B007  of the lowest rank
        role = roles.of(one.series.key)
        known = by_role.get(role, {})
        key = next((other.series.key for other in known.values()), one.series.key)
        if role in ROLES and one.attempt is not None and one.attempt <= attempt and (one.series.key == key):
            by_role.setdefault(role, {})[one.attempt] = one
    losses = by_role.get("loss", {})
    earlier = [number for number in losses if number < attempt]
    if attempt not in losses or not earlier:
        return None
    first, before = losses[min(earlier)], losses[max(earlier)]
    begins, ends = series.first(connection, *losses[attempt][3:]), series.last(connection, *before[3:], LAST)
    first_steps, _, first_values = series.first(connection, *first[3:])
    if not (begins[0] and first_steps and ends[0]):
        return None
    step, reached = begins[0][0] - 1, max(ends[0])
    window = Window("step", step - BEFORE, max(reached, step + WINDOW))
    quantities = {role: _quantity(connection, own, attempt, window) for role, own in by_role.items()}
    quantities["loss"] = quantities["loss"]._replace(first=list(filter(isfinite, first_values[:FIRST])))
    quantities["duration"] = _durations(connection, losses, attempt, window)
    saved = _points(connection, before, Window("step", step - BEFORE, step))
    ended = ends[1][-1] / 1e6
    lost = ended - saved[-1][1] if saved and reached > step else 0.0
    down = begins[1][0] / 1e6 - ended
    return ResumeFacts(step, reached, first_steps[0], max(0.0, lost), max(0.0, down), quantities)


def _points(connection: sqlite3.Connection, one: RunSeries, window: Window) -> Points:
    points = chart(connection, one.series, one.tail, window, SAMPLES).points
    return [(int(step), time, value) for step, time, _, _, value in points if isfinite(value)]


def _quantity(connection: sqlite3.Connection, own: Mapping[int, RunSeries], attempt: int, window: Window) -> Quantity:
    before: dict[int, float] = {}
    after: dict[int, float] = {}
    for number in sorted(own):
        points = _points(connection, own[number], window)
        (after if number == attempt else before).update((step, value) for step, _, value in points)
    return Quantity(before, after)


def _durations(
    connection: sqlite3.Connection, losses: Mapping[int, RunSeries], attempt: int, window: Window
) -> Quantity:
    before: dict[int, float] = {}
    after: dict[int, float] = {}
    for number in sorted(losses):
        points: Sequence[tuple[int, float, float]] = _points(connection, losses[number], window)
        for (step, time, _), (later, end, _) in pairwise(points):
            if later > step:
                (after if number == attempt else before)[later] = max(0.0, end - time) / (later - step)
    return Quantity(before, after)
